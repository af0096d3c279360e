// Documents to ids, which go to the rank's temporary files with all that writing needs to know.
#pragma once

#include <xxhash.h>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "documents.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// A document is one text, or two: the source and the target of a pair. Arrays by text have room for
// two; a document of one text uses the first place.
template <typename T>
using PerText = std::array<T, 2>;
inline constexpr std::size_t kSourceText = 0, kTargetText = 1;
inline constexpr PerText<Side> kPairSides = {Side::kSource, Side::kTarget};

// The tokenizers of a document's texts; one object twice if the texts of a pair share a vocabulary.
using TextTokenizers = std::vector<Tokenizer*>;

// Splits that the hashes of few documents leave empty get documents of smallest hash.

// A document whose split its hash chose. Sent between ranks as it is.
struct HashedDocument {
  std::uint64_t hash = 0;
  std::uint64_t unit = 0, place = 0;  // its unit, its number there
  std::uint64_t tokens = 0;
  Split split = Split::kTrain;
  std::uint32_t room = 0;

  // The order of the choice, the same for any number of ranks.
  auto operator<=>(const HashedDocument&) const = default;
};

// Documents of smallest hash of each split.
class SmallestHashes {
 public:
  void Add(const HashedDocument& document);
  std::vector<HashedDocument> All() const;

 private:
  static constexpr std::size_t kKept = 8;  // of a split; a move takes one, and a split needs one
  std::array<std::vector<HashedDocument>, 3> smallest_;  // by split, ascending
};

struct UnitResult;

// Sizes of the splits.
struct SplitSizes {
  PerText<std::array<std::int64_t, 3>> tokens{};
  std::array<std::int64_t, 3> documents{};
  void Add(const UnitResult& unit);
};

inline constexpr std::int64_t kLeastTokens = 2;  // of a split: a token and its target

struct DocumentMove {
  HashedDocument document;
  Split to = Split::kTrain;
};

// Documents of one text to move until each split of `wanted` has kLeastTokens, in the order of the
// splits valid, test, train: each time that of smallest hash whose own split keeps a document. The
// list is shorter if there are too few. `sizes`: before; on return, after the moves.
std::vector<DocumentMove> MovesToEmptySplits(std::vector<HashedDocument> documents,
                                             const std::array<bool, 3>& wanted, SplitSizes& sizes);

// A file without a name that keeps what memory should not: gone when its process is.

// Appended to, then read. All throw RunError with the folder.
class Spill {
 public:
  explicit Spill(const std::string& folder);

  void Append(const void* bytes, std::size_t count);
  std::int64_t Size() const { return size_; }
  // Bytes [begin, begin + count), all of them appended before.
  void Read(std::int64_t begin, void* to, std::size_t count);
  // Changes such bytes.
  void Overwrite(std::int64_t begin, const void* bytes, std::size_t count);
  // Gives back the space of bytes [begin, end), which are not read again, if the file system can.
  // Bytes not yet written to the disk never are on tmpfs and newer ext4.
  void Release(std::int64_t begin, std::int64_t end);

 private:
  void Flush();
  void Put(std::int64_t begin, const void* bytes, std::size_t count);
  void Get(std::int64_t begin, char* to, std::size_t count);

  std::string folder_;
  Descriptor file_;
  std::vector<char> buffer_;  // the last bytes, not in the file yet
  std::vector<char> ahead_;   // bytes of the file from ahead_begin_ on, for small reads in order
  std::int64_t ahead_begin_ = 0;
  std::int64_t size_ = 0;
};

inline constexpr auto kTrainAt = static_cast<std::size_t>(Split::kTrain);  // in arrays by split

// Around the documents, and where they go.
struct EncodeSettings {
  PerText<std::int64_t> eos{};  // id after each text
  bool masks = false;           // whether some tokens do not count as targets
  // Shares of the training files' documents that a hash of their text gives to the other splits.
  double valid_fraction = 0, test_fraction = 0;
  // Split of a document by the hash of its text (XXH3, 64 bits): the prompt comes first; texts of a
  // pair have a line end between them. file: of its file.
  Split SplitOf(std::uint64_t hash, Split file) const;
};

// A document in the temporary file, which has no place for texts that documents do not have.
struct SpilledDocument {
  std::uint64_t split = 0;
  PerText<std::uint64_t> tokens{};
};

// Outcome of a unit. Sent between ranks as it is.
struct UnitResult {
  std::uint64_t unit = 0;                         // its place in the list
  PerText<std::array<std::int64_t, 3>> tokens{};  // by Split
  std::array<std::int64_t, 3> documents{};        // by Split
  PerText<std::int64_t> tokens_at{};              // first token in the rank's files, in tokens
  std::int64_t documents_at = 0;                  // first document in the rank's file
  std::array<std::uint64_t, 2> digest{};          // of the documents' texts and splits
  std::int64_t replaced = 0;                      // sequences that were not valid UTF-8
  std::int64_t empty = 0;    // documents that are left out: no text at all, or a pair's is blank
  std::int64_t missing = 0;  // records that are left out: without the member, or with null
};

SplitSizes SumOf(std::span<const UnitResult> results);

// The temporary files of a rank.
class Spills {
 public:
  Spills(const std::string& folder, std::size_t texts);

  void Append(const SpilledDocument& document);
  SpilledDocument Document(std::int64_t place);
  void Overwrite(std::int64_t place, const SpilledDocument& document);
  std::int64_t Documents() const { return documents_.Size() / document_bytes_; }

  std::vector<Spill> tokens;  // by text
  Spill mask;
  bool copied = false;  // tokens of train are in the token file, those of valid and test in `rest`
  Spill rest;

 private:
  Spill documents_;
  std::int64_t document_bytes_;
};

// Encodes documents text by text, each in one piece or in several.
class Encoder {
 public:
  // The arguments must live longer.
  Encoder(const TextTokenizers& tokenizers, const EncodeSettings& settings, Spills& spills);

  // split: of the unit's file. where: the document's place, for a complaint of the tokenizer; may
  // be empty.
  void Begin(std::size_t unit, Split split, std::function<std::string()> where = {});
  UnitResult Finish();
  // Of all units: documents that may go to another split.
  const SmallestHashes& Smallest() const { return smallest_; }

  enum class Piece { kPrompt, kText, kRest };  // kRest: of a text that was cut
  // Encodes a piece of the text, which is valid UTF-8. Tokens of a prompt do not count as targets.
  void Add(std::string_view text, Piece piece = Piece::kText);
  void NextText();  // what follows is the pair's target
  void End();       // of the document

 private:
  using Hash = std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)>;
  static Hash MakeHash();
  void EndText();
  void Emit(bool counted);  // what ids_ holds
  bool HasPairs() const { return tokenizers_.size() > 1; }

  const TextTokenizers& tokenizers_;
  const EncodeSettings& settings_;
  Spills& spills_;
  PerText<std::int64_t> width_{};
  PerText<std::vector<std::int32_t>> prefix_, suffix_;  // of each text; the suffix ends with eos
  Hash document_hash_ = MakeHash(), unit_hash_ = MakeHash();
  UnitResult result_;
  SmallestHashes smallest_;
  Split split_ = Split::kTrain;
  std::function<std::string()> where_;
  std::size_t text_ = 0;               // of the document
  bool open_ = false;                  // within that text
  PerText<std::uint64_t> tokens_{};    // of the document
  std::vector<std::int32_t> ids_;      // room
  std::vector<std::uint16_t> narrow_;  // room
};

// Encodes documents of one text as they are read. Long ones are cut into pieces of about a MiB,
// where the tokenizer allows it.
class DocumentEncoder : public RecordSink {
 public:
  // `file`: of the unit. The references must live longer.
  DocumentEncoder(Encoder& to, const Tokenizer& tokenizer, const TextFile& file);

  std::string Where() const;  // "FILE: record at byte 12"
  void Prompt(std::string_view text, std::int64_t offset) override;
  void Text(std::string_view piece, std::int64_t offset) override;  // valid UTF-8
  void End() override;

 private:
  void EncodeHeld(bool ended);
  [[noreturn]] void RefuseLong() const;

  Encoder& to_;
  const Tokenizer& tokenizer_;
  const TextFile& file_;
  bool open_ = false;        // within a document
  std::int64_t offset_ = 0;  // of the document in its file's text
  std::string text_;         // not encoded yet
  bool cut_ = false;         // text_ follows a cut
  std::size_t enough_;       // bytes of text_ at which a cut is looked for
};

}  // namespace trireme::data
