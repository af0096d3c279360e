// The token file: HDF5 with a token array per split and a vocabulary. It is read collectively in
// parts and checked on opening.
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

// Consecutive tokens of a split, with what a batch needs to know about them.
struct Window {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> documents;  // indices in ids at which a document begins, ascending
  std::vector<std::uint8_t> counted;    // one per id; 0: not a target of the loss; empty: all count
};

// Tokens of a window that lie in another object's memory (a token file or a Window).
struct WindowView {
  WindowView() = default;
  WindowView(const Window& window)
      : size(std::ssize(window.ids)),
        wide(window.ids.data()),
        documents(window.documents),
        counted(window.counted) {}

  std::int32_t Id(std::int64_t i) const { return narrow != nullptr ? narrow[i] : wide[i]; }
  // Copies ids [begin, end) to `to`.
  void CopyIds(std::int64_t begin, std::int64_t end, std::int32_t* to) const {
    narrow != nullptr ? std::copy(narrow + begin, narrow + end, to)
                      : std::copy(wide + begin, wide + end, to);
  }

  std::int64_t size = 0;  // tokens
  // Ids, as two bytes or four bytes each; the other pointer is null.
  const std::uint16_t* narrow = nullptr;
  const std::int32_t* wide = nullptr;
  // Where documents begin, ascending, counted so that the first token of the view has number
  // `origin`.
  std::span<const std::int64_t> documents = {};
  std::int64_t origin = 0;
  std::span<const std::uint8_t> counted = {};  // as Window::counted
};

enum class Split { kTrain = 0, kValid = 1, kTest = 2 };
inline constexpr std::array<Split, 3> kSplits = {Split::kTrain, Split::kValid, Split::kTest};
const char* NameOf(Split split);  // "train", "valid", "test"

// Which texts a TokenFile reads: the stream of a file of single texts, or one side of its pairs.
enum class Side { kText = 0, kSource = 1, kTarget = 2 };

// Words by id: UTF-8 text, or one raw byte each at byte level.
struct Vocabulary {
  std::vector<std::string> words;
  std::int64_t eos = 0;   // id of the token that ends a line or a document
  std::int64_t unk = -1;  // id of unknown words; -1: the tokenizer has none
};

// The result of tokenisation, which WriteTokenFile writes.
struct TokenData {
  std::array<std::vector<std::int32_t>, 3> tokens;  // by Split
  // By Split, empty if unknown: `documents` holds the offsets at which documents begin, ascending
  // from 0; `counted` holds 1 for each token that counts as a target, else 0.
  std::array<std::vector<std::int64_t>, 3> documents;
  std::array<std::vector<std::uint8_t>, 3> counted;
  Vocabulary vocabulary;
  std::string tokenizer;  // "word", "word lowercase", "byte", "harbour"
  // 64 hex digits: hash of the three texts in order, or of the generator's keys
  std::string source_sha256;
  std::optional<double> entropy_rate;        // nats per token; nullopt: unknown
  std::optional<std::int64_t> harbour_seed;  // seed of the corpus (harbour only)
};

// Throws InputError if no token file can be written to `path`: an empty name, a folder, an existing
// file (unless `overwrite`), or a folder that does not exist or is not writable. An early check
// before tokenisation begins; WriteTokenFile repeats it.
void CheckTokenFileTarget(const std::string& path, bool overwrite);

// Writes a temporary file beside `path`, syncs and verifies it, and renames it. Serial. An existing
// file is an error unless `overwrite`. Ids are stored as uint16 if the vocabulary allows it, else
// as uint32. Throws InputError (file exists, bad or read-only folder) or RunError (disk full; names
// the path).
void WriteTokenFile(const std::string& path, const TokenData& data, bool overwrite);

struct TokenLayout;  // internal: layout of a file
// Layouts of token files that this rank has read, by path. Opening a file takes its entry out.
using KnownFiles = std::map<std::string, std::shared_ptr<TokenLayout>>;

// Which parts of a token file are kept, and where.
struct Keeping {
  Keeping(Staging where = Staging::kNone) : staging(where) {}  // all splits
  Keeping(Staging where, std::array<bool, 3> which, std::int64_t ahead, bool reads_here = true)
      : staging(where), splits(which), read_ahead(ahead), reads(reads_here) {}
  Staging staging;
  std::array<bool, 3> splits = {true, true, true};  // by Split: which are read at all
  std::int64_t read_ahead = 2;                      // Options::read_ahead
  bool reads = true;                                // if streamed: this rank reads the stream
  // Folder for the node's copy (Staging::kNode), which the node's first rank makes.
  std::string folder = {};
  KnownFiles* known = nullptr;  // consumed by the first rank; null: none
  Side side = Side::kText;      // which texts to read
};

// What a plan needs to know about a token file.
struct TokenCounts {
  std::int64_t vocabulary = 0;           // types
  std::int64_t eos = 0, unk = -1;        // as in Vocabulary
  std::array<std::int64_t, 3> tokens{};  // by Split
  std::array<std::int64_t, 3> bytes{};   // by Split: size in memory, masks included
  std::array<bool, 3> documents{};       // by Split: whether it is known where they begin
  std::array<bool, 3> masks{};           // by Split: whether there is a loss mask
  std::string tokenizer, vocabulary_sha256, source_sha256, tokenizer_sha256;  // as in TokenFile
};
// Reads those numbers; checks everything but the arrays' elements. Serial; needs no MPI. Throws
// InputError as opening does. known: receives the layout; may be null.
TokenCounts CountTokens(const std::string& path, KnownFiles* known = nullptr);
// Bytes of one in-memory copy of the splits that are kept.
std::int64_t BytesOf(const TokenCounts& counts, const Keeping& keeping);
// Upper limit of the bytes of a node's copy in its folder; 0 unless staging is kNode.
std::int64_t StagedBytesOf(const TokenCounts& counts, const Keeping& keeping);

// TokenFile::TokenizerSha256 of tokenizer files given as contents by name; empty without files.
std::string TokenizerSha256Of(const std::map<std::string, std::string>& files);

class TokenArrays;  // internal

// An open token file, whose splits are in memory or read when needed. Makes no HDF5 calls after
// construction.
class TokenFile {
 public:
  // Opens and reads a file. Collective over `world`. node: ranks that share memory. Checks that the
  // file is complete, its format and dimensions, that each split has at least 2 tokens, that ids
  // kept in memory are below the vocabulary size, and that all ranks see the same file or a copy of
  // it. after_round (may be empty): called on all ranks about every 256 MiB; may throw an
  // AgreedError. Throws AgreedError (exit code 2) naming file, dataset and offset of the first bad
  // token.
  TokenFile(const comm::Communicator& world, const comm::Communicator& node,
            const std::string& path, const Keeping& keeping,
            const std::function<void()>& after_round = {});
  // Copies tokens from memory; Path() is then empty. Collective over `world`, whose ranks pass the
  // same data. Throws AgreedError (exit code 2) if a split has fewer than 2 tokens or an id is
  // outside the vocabulary.
  TokenFile(const comm::Communicator& world, const TokenData& data);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  std::int64_t Size(Split split) const;  // tokens
  bool Keeps(Split split) const;         // whether it is in memory
  // Whether the split's document boundaries, and its loss mask, are known.
  bool HasDocuments(Split split) const;
  bool HasMask(Split split) const;
  // Tokens [begin, begin + count) of a split in memory. documents: include where documents begin.
  WindowView View(Split split, std::int64_t begin, std::int64_t count, bool documents = true) const;
  std::int64_t Documents(Split split) const;  // number; 0 if unknown
  // Offsets at which documents begin, of a split in memory; empty if unknown.
  std::span<const std::int64_t> Beginnings(Split split) const;
  const Vocabulary& Words() const;
  std::int64_t VocabularySize() const { return static_cast<std::int64_t>(Words().words.size()); }
  const std::string& Tokenizer() const;
  const std::string& SourceSha256() const;
  // 64 hex digits: hash of all words, each preceded by its length
  std::string VocabularySha256() const;
  // 64 hex digits: hash of the files in /tokenizer (for each its name, size and bytes); empty
  // without a subword tokenizer.
  std::string TokenizerSha256() const;
  // Contents of the files in /tokenizer, by name; empty without a subword tokenizer.
  const std::map<std::string, std::string>& TokenizerFiles() const;
  std::optional<double> EntropyRate() const;  // nats per token; nullopt: unknown
  std::int64_t MemoryBytes() const;           // this rank's share of the copy in memory
  const std::string& Path() const;
  bool Streams() const;            // windows are read by class Windows; nothing is in memory
  std::int64_t ReadAhead() const;  // of a stream, in steps
  const TokenLayout& Layout() const;
  // The open file behind a stream, or its copy on this node. It stays readable even if another file
  // takes its name. Only on ranks that read the stream.
  const TokenArrays& Opened() const;
  bool OpenedHolds(Split split) const;  // false: the node's copy leaves out this split
  const StagedCopies& Staged() const;

  // Encodes a text with the file's own tokenizer, without an <eos> at the end. Unknown words become
  // unk. A subword tokenizer puts its template's prefix first and, if `whole`, its suffix last.
  // Throws InputError for invalid UTF-8, for an unknown word if there is no unk, and for a broken
  // /tokenizer.
  std::vector<std::int32_t> Encode(std::string_view text, bool whole = false) const;
  // Decodes ids: words are joined by blanks and <eos> becomes a newline; bytes and subwords are
  // concatenated as they are.
  std::string Decode(const std::vector<std::int32_t>& ids) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

// Version of the HDF5 library in use: "1.10.8".
std::string Hdf5Version();

}  // namespace trireme::data
