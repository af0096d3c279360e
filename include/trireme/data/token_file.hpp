// The token file: an HDF5 file of three token arrays and a vocabulary, read collectively through
// the MPI-IO driver and checked on opening.
#ifndef TRIREME_DATA_TOKEN_FILE_HPP_
#define TRIREME_DATA_TOKEN_FILE_HPP_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"

namespace trireme::data {

enum class Split { kTrain = 0, kValid = 1, kTest = 2 };
inline constexpr std::array<Split, 3> kSplits = {Split::kTrain, Split::kValid, Split::kTest};
const char* NameOf(Split split);  // "train", "valid", "test"

// Id <-> UTF-8 (or raw byte) of a token; ids are positions.
struct Vocabulary {
  std::vector<std::string> words;
  std::int64_t eos = 0;
  std::int64_t unk = -1;  // -1: the tokenizer has none (byte level)
};

// What tokenisation produces and the writer stores.
struct TokenData {
  std::array<std::vector<std::int32_t>, 3> tokens;  // by Split
  Vocabulary vocabulary;
  std::string tokenizer;  // "word", "word lowercase", "byte", "harbour"
  std::string
      source_sha256;  // 64 hex digits: of the three texts in order, or of the generator's deck
  std::optional<double> entropy_rate;        // nats a token, where known
  std::optional<std::int64_t> harbour_seed;  // "harbour" only: the corpus' seed
};

// Throws InputError when a token file cannot be written to `path`: empty, a folder, there already
// (unless `overwrite`), or in a folder that does not exist or may not be written to. For asking
// before the work of tokenisation begins; WriteTokenFile asks again.
void CheckTokenFileTarget(const std::string& path, bool overwrite);

// One rank writes `path` by way of a temporary name beside it (synced, read back, renamed).
// Existing files are refused unless `overwrite`. Ids are stored as uint16 where they fit, else
// uint32. Throws InputError (exists, bad or forbidden folder) or RunError (disk full, with path).
void WriteTokenFile(const std::string& path, const TokenData& data, bool overwrite);

// An opened token file: all tokens in memory, no HDF5 call after construction.
class TokenFile {
 public:
  // Collective over `world`; `node` = ranks that share memory. Checks format, dimensions, ids below
  // the vocabulary, lengths (a split holds at least 2 tokens) and that the file is
  // whole. AgreedError (exit code 2) names file, dataset and offset (of the first bad token).
  TokenFile(const comm::Communicator& world, const comm::Communicator& node,
            const std::string& path, Staging staging);
  // Collective over `world`, whose ranks pass the same data: a copy a rank, without a file; Path()
  // is empty. AgreedError (exit code 2) for a split of fewer than 2 tokens or an id that is none.
  TokenFile(const comm::Communicator& world, const TokenData& data);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  std::int64_t Size(Split split) const;                       // tokens
  std::int32_t Token(Split split, std::int64_t index) const;  // 0 <= index < Size
  const Vocabulary& Words() const;
  std::int64_t VocabularySize() const { return static_cast<std::int64_t>(Words().words.size()); }
  const std::string& Tokenizer() const;
  const std::string& SourceSha256() const;
  std::optional<double> EntropyRate() const;  // nats a token
  std::int64_t MemoryBytes() const;           // this rank's share of the copy
  const std::string& Path() const;

  // Text -> ids by the file's own tokenizer (unknown words become unk; byte level never has any),
  // without an <eos> at the end. Throws InputError for bad UTF-8.
  std::vector<std::int32_t> Encode(std::string_view text) const;
  // Ids -> text: words joined by blanks, <eos> as a newline; bytes as they are.
  std::string Decode(const std::vector<std::int32_t>& ids) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

// Of the HDF5 library in use: "1.10.8".
std::string Hdf5Version();

}  // namespace trireme::data

#endif  // TRIREME_DATA_TOKEN_FILE_HPP_
