// The token file: an HDF5 file of three token arrays and a vocabulary, read collectively in parts
// and checked on opening.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"

namespace trireme::data {

// Consecutive tokens of a split, with what a batch needs of them.
struct Window {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> documents;  // offsets in ids at which a document begins, ascending
  std::vector<std::uint8_t> counted;    // [ids]: 0: no target of the loss; empty: all count
};

// A view of a window's tokens in memory that another object keeps: a token file, or a Window.
struct WindowView {
  WindowView() = default;
  WindowView(const Window& window)
      : size(std::ssize(window.ids)),
        wide(window.ids.data()),
        documents(window.documents),
        counted(window.counted) {}

  std::int32_t Id(std::int64_t i) const { return narrow != nullptr ? narrow[i] : wide[i]; }
  // Ids [begin, end) to `to`.
  void CopyIds(std::int64_t begin, std::int64_t end, std::int32_t* to) const {
    narrow != nullptr ? std::copy(narrow + begin, narrow + end, to)
                      : std::copy(wide + begin, wide + end, to);
  }

  std::int64_t size = 0;  // tokens
  // Ids, in two bytes each or in four; the other one is null.
  const std::uint16_t* narrow = nullptr;
  const std::int32_t* wide = nullptr;
  // Tokens at which a document begins, ascending, counted from where `origin` is the first token.
  std::span<const std::int64_t> documents = {};
  std::int64_t origin = 0;
  std::span<const std::uint8_t> counted = {};  // as of Window
};

enum class Split { kTrain = 0, kValid = 1, kTest = 2 };
inline constexpr std::array<Split, 3> kSplits = {Split::kTrain, Split::kValid, Split::kTest};
const char* NameOf(Split split);  // "train", "valid", "test"

// Texts of a token file: one stream of tokens, or pairs, of which a TokenFile reads one side.
enum class Side { kText = 0, kSource = 1, kTarget = 2 };

// Words by id: UTF-8, or one raw byte each.
struct Vocabulary {
  std::vector<std::string> words;
  std::int64_t eos = 0;   // id of the end of a line
  std::int64_t unk = -1;  // id of unknown words; -1: the tokenizer has none (byte level)
};

// Result of tokenisation, to be written to a token file.
struct TokenData {
  std::array<std::vector<std::int32_t>, 3> tokens;  // by Split
  // By Split, empty if there are none: offsets of the beginnings of documents, ascending from 0; a
  // token's 1 if it counts as a target, else 0.
  std::array<std::vector<std::int64_t>, 3> documents;
  std::array<std::vector<std::uint8_t>, 3> counted;
  Vocabulary vocabulary;
  std::string tokenizer;  // "word", "word lowercase", "byte", "harbour"
  std::string
      source_sha256;  // 64 hex digits: of the three texts in order, or of the generator's deck
  std::optional<double> entropy_rate;        // nats per token; none: unknown
  std::optional<std::int64_t> harbour_seed;  // "harbour" only: the corpus' seed
};

// Throws InputError if no token file can be written to `path`: empty, a folder, there already
// (unless `overwrite`), or in a folder that does not exist or forbids writing. A check before the
// work of tokenisation begins; WriteTokenFile repeats it.
void CheckTokenFileTarget(const std::string& path, bool overwrite);

// Writes `path` by way of a temporary name beside it (synced, read back, renamed). Serial. Refuses
// an existing file unless `overwrite`. Ids are stored as uint16 if the vocabulary allows it, else
// as uint32. Throws InputError (exists, bad or forbidden folder) or RunError (disk full, with
// path).
void WriteTokenFile(const std::string& path, const TokenData& data, bool overwrite);

struct TokenLayout;  // of a file: internal
// Descriptions of token files that this rank has read, by path: the next opening of a file takes
// its own.
using KnownFiles = std::map<std::string, std::shared_ptr<TokenLayout>>;

// Parts of a token file that are kept in memory, and how.
struct Keeping {
  Keeping(Staging where = Staging::kNone) : staging(where) {}  // all splits
  Keeping(Staging where, std::array<bool, 3> which, std::int64_t ahead, bool reads_here = true)
      : staging(where), splits(which), read_ahead(ahead), reads(reads_here) {}
  Staging staging;
  std::array<bool, 3> splits = {true, true, true};  // by Split: those that are read at all
  std::int64_t read_ahead = 2;                      // Options::read_ahead
  bool reads = true;                                // a stream is read on this rank
  // Folder of the node's copy (Staging::kNode), which the first rank of a node makes.
  std::string folder = {};
  KnownFiles* known = nullptr;  // used up by the first rank; null: none
  Side side = Side::kText;      // arrays that are read
};

// Numbers of a token file that a plan needs.
struct TokenCounts {
  std::int64_t vocabulary = 0;           // types
  std::int64_t eos = 0, unk = -1;        // as of Vocabulary
  std::array<std::int64_t, 3> tokens{};  // by Split
  std::array<std::int64_t, 3> bytes{};   // by Split: of a copy in memory, with its masks
  std::array<bool, 3> documents{};       // by Split: whether their beginnings are known
  std::array<bool, 3> masks{};           // by Split: whether there is a mask of the loss
  std::string tokenizer, vocabulary_sha256, source_sha256, tokenizer_sha256;  // as of TokenFile
};
// Checks everything but the arrays' elements. Serial; needs no MPI. Throws InputError as opening
// does. known: gets the description; may be null.
TokenCounts CountTokens(const std::string& path, KnownFiles* known = nullptr);
// Bytes of one copy of what is kept in memory.
std::int64_t BytesOf(const TokenCounts& counts, const Keeping& keeping);
// Most bytes that a node's copy takes in its folder; 0 unless it is staged there.
std::int64_t StagedBytesOf(const TokenCounts& counts, const Keeping& keeping);

// TokenFile::TokenizerSha256 of tokenizer files: contents by name. Empty without files.
std::string TokenizerSha256Of(const std::map<std::string, std::string>& files);

class TokenArrays;  // internal

// An opened token file: its splits in memory, or read as they are needed; no HDF5 call after
// construction.
class TokenFile {
 public:
  // Reads a file. Collective over `world`; `node`: ranks that share memory. Checks that the file is
  // whole, its format and dimensions, at least 2 tokens per split and, of what is kept in memory,
  // ids below the vocabulary; on other ranks, that they see the file that the first one sees, or a
  // copy of it. Throws AgreedError (exit code 2) naming file, dataset and offset of the first bad
  // token.
  // after_round (may be empty) is called on all ranks about every 256 MiB, and may throw an
  // AgreedError.
  TokenFile(const comm::Communicator& world, const comm::Communicator& node,
            const std::string& path, const Keeping& keeping,
            const std::function<void()>& after_round = {});
  // Copies tokens in memory, without a file; Path() is empty. Collective over `world`, whose ranks
  // pass the same data. Throws AgreedError (exit code 2) for a split of fewer than 2 tokens and for
  // an id outside of the vocabulary.
  TokenFile(const comm::Communicator& world, const TokenData& data);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  std::int64_t Size(Split split) const;  // tokens
  bool Keeps(Split split) const;         // in memory
  // Whether the split's documents, and its mask of the loss, are known.
  bool HasDocuments(Split split) const;
  bool HasMask(Split split) const;
  // Tokens [begin, begin + count) of a split in memory; documents: with their beginnings.
  WindowView View(Split split, std::int64_t begin, std::int64_t count, bool documents = true) const;
  std::int64_t Documents(Split split) const;  // 0 if they are not known
  // Tokens at which the documents of a split in memory begin; empty if they are not known.
  std::span<const std::int64_t> Beginnings(Split split) const;
  const Vocabulary& Words() const;
  std::int64_t VocabularySize() const { return static_cast<std::int64_t>(Words().words.size()); }
  const std::string& Tokenizer() const;
  const std::string& SourceSha256() const;
  std::string VocabularySha256() const;  // 64 hex digits: of the words, each after its length
  // 64 hex digits: of the files in /tokenizer, of each its name and size, then its bytes; empty
  // without a subword tokenizer.
  std::string TokenizerSha256() const;
  // The files in /tokenizer by name: contents; none without a subword tokenizer.
  const std::map<std::string, std::string>& TokenizerFiles() const;
  std::optional<double> EntropyRate() const;  // nats per token
  std::int64_t MemoryBytes() const;           // of this rank's share of the copy
  const std::string& Path() const;
  bool Streams() const;            // windows come from the file (class Windows), none is in memory
  std::int64_t ReadAhead() const;  // steps, of a stream
  const TokenLayout& Layout() const;
  // The open file of a stream, read on whatever takes its name, or its copy on this node; only on
  // ranks that read it.
  const TokenArrays& Opened() const;
  bool OpenedHolds(Split split) const;  // a copy has only the splits that are kept
  const StagedCopies& Staged() const;

  // Ids of a text by the file's own tokenizer, without an <eos> at the end; unknown words become
  // unk (byte level has none). A subword tokenizer's template begins the ids. Throws InputError for
  // bad UTF-8, for an unknown word without unk, and for a broken /tokenizer.
  std::vector<std::int32_t> Encode(std::string_view text) const;
  // Text of ids: words joined by blanks, <eos> as a newline; bytes and subwords as they are.
  std::string Decode(const std::vector<std::int32_t>& ids) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

// Version of the HDF5 library in use: "1.10.8".
std::string Hdf5Version();

}  // namespace trireme::data
