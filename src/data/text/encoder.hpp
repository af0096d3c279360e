// Encodes documents into the rank's temporary files, with everything that writing has to know.
#pragma once

#include <xxhash.h>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "documents.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// A document has one text, or two: the source and the target of a pair. Arrays by text have room
// for two; a document with one text uses the first place.
template <typename T>
using PerText = std::array<T, 2>;
inline constexpr std::size_t kSourceText = 0, kTargetText = 1;
inline constexpr PerText<Side> kPairSides = {Side::kSource, Side::kTarget};

// The tokenizers by text; the same object twice if the texts of a pair share a vocabulary.
using TextTokenizers = std::vector<Tokenizer*>;

// A document whose split was chosen by its hash; it may be moved to a split that would stay empty.
// Sent between ranks as raw bytes.
struct HashedDocument {
  std::uint64_t hash = 0;
  std::uint64_t unit = 0, place = 0;  // its unit, its index there
  std::uint64_t tokens = 0;
  Split split = Split::kTrain;
  std::uint32_t room = 0;

  // The order in which documents are chosen, the same for any number of ranks.
  auto operator<=>(const HashedDocument&) const = default;
};

// The documents of smallest hash in each split.
class SmallestHashes {
 public:
  void Add(const HashedDocument& document);
  std::vector<HashedDocument> All() const;

 private:
  // Documents kept per split: a move takes one, and the split must keep one.
  static constexpr std::size_t kKept = 8;
  std::array<std::vector<HashedDocument>, 3> smallest_;  // by Split, ascending
};

struct UnitResult;

// Total sizes by Split.
struct SplitSizes {
  PerText<std::array<std::int64_t, 3>> tokens{};
  std::array<std::int64_t, 3> documents{};
  void Add(const UnitResult& unit);
};

inline constexpr std::int64_t kLeastTokens = 2;  // per split: a token and its target

struct DocumentMove {
  HashedDocument document;
  Split to = Split::kTrain;
};

// Chooses documents (single texts) to move until each split of `wanted` has kLeastTokens; fills
// valid, test and train in this order. Each time it takes the document of smallest hash whose own
// split keeps kLeastTokens. The list is shorter if there are too few. sizes: updated by the moves.
std::vector<DocumentMove> MovesToEmptySplits(std::vector<HashedDocument> documents,
                                             const std::array<bool, 3>& wanted, SplitSizes& sizes);

// A nameless temporary file for what is too large for memory; it vanishes with the process. It is
// appended to, then read. All functions throw RunError with the folder.
class Spill {
 public:
  explicit Spill(const std::string& folder);

  void Append(const void* bytes, std::size_t count);
  std::int64_t Size() const { return size_; }
  // Reads bytes [begin, begin + count), which must have been appended before.
  void Read(std::int64_t begin, void* to, std::size_t count);
  // Overwrites bytes that were appended before.
  void Overwrite(std::int64_t begin, const void* bytes, std::size_t count);
  // Frees the disk space of bytes [begin, end), which are not read again, if the file system can.
  // On tmpfs and newer ext4, bytes that are not on disk yet are then never written there.
  void Release(std::int64_t begin, std::int64_t end);

 private:
  void Flush();
  void Put(std::int64_t begin, const void* bytes, std::size_t count);
  void Get(std::int64_t begin, char* to, std::size_t count);

  std::string folder_;
  Descriptor file_;
  std::vector<char> buffer_;  // the last bytes, which are not in the file yet
  std::vector<char> ahead_;   // read-ahead from byte ahead_begin_ on, for small reads in order
  std::int64_t ahead_begin_ = 0;
  std::int64_t size_ = 0;
};

// Index of train in arrays by Split.
inline constexpr auto kTrainAt = static_cast<std::size_t>(Split::kTrain);

// How documents are encoded and divided among splits.
struct EncodeSettings {
  PerText<std::int64_t> eos{};  // id that ends each text
  bool masks = false;           // some tokens do not count as targets
  // Fractions of the train files' documents that go to the other splits, by a hash of their text.
  double valid_fraction = 0, test_fraction = 0;
  // The split of a document. hash: XXH3 (64 bits) of its text, where a prompt comes first and a
  // line end lies between the texts of a pair. file: the split of its file.
  Split SplitOf(std::uint64_t hash, Split file) const;
};

// A document's record in the temporary file; with single texts, it ends after tokens[0].
struct SpilledDocument {
  std::uint64_t split = 0;
  PerText<std::uint64_t> tokens{};
};

// Result of encoding a unit. Sent between ranks as raw bytes.
struct UnitResult {
  std::uint64_t unit = 0;                         // its index
  PerText<std::array<std::int64_t, 3>> tokens{};  // by Split
  std::array<std::int64_t, 3> documents{};        // by Split
  PerText<std::int64_t> tokens_at{};              // index of the first token in the rank's files
  std::int64_t documents_at = 0;                  // index of the first document in the rank's file
  std::array<std::uint64_t, 2> digest{};          // hash of the documents' texts and splits
  std::int64_t replaced = 0;                      // invalid UTF-8 sequences
  std::int64_t empty = 0;    // documents dropped: no text at all, or a blank text in a pair
  std::int64_t missing = 0;  // records dropped: text member absent or null
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
  bool copied = false;  // train tokens are in the token file already, the others in `rest`
  Spill rest;

 private:
  Spill documents_;
  std::int64_t document_bytes_;
};

// Encodes documents text by text; a text may come in several pieces.
class Encoder {
 public:
  // The arguments must outlive the encoder.
  Encoder(const TextTokenizers& tokenizers, const EncodeSettings& settings, Spills& spills);

  // Begins a unit. split: that of its file. where: names the current document if the tokenizer
  // fails; may be empty.
  void Begin(std::size_t unit, Split split, std::function<std::string()> where = {});
  UnitResult Finish();
  // Over all units: documents that may move to another split.
  const SmallestHashes& Smallest() const { return smallest_; }

  enum class Piece { kPrompt, kText, kRest };  // kRest: continues a text after a cut
  // Encodes a piece of a text (valid UTF-8). Tokens of a prompt do not count as targets.
  void Add(std::string_view text, Piece piece = Piece::kText);
  void NextText();  // what follows is the pair's target
  void End();       // ends the document

 private:
  void EndText();
  void Emit(bool counted);  // writes out ids_
  bool HasPairs() const { return tokenizers_.size() > 1; }

  const TextTokenizers& tokenizers_;
  const EncodeSettings& settings_;
  Spills& spills_;
  PerText<std::int64_t> width_{};
  PerText<std::vector<std::int32_t>> prefix_, suffix_;  // by text; the suffix ends with eos
  XXH3_state_t document_hash_, unit_hash_;
  UnitResult result_;
  SmallestHashes smallest_;
  Split split_ = Split::kTrain;
  std::function<std::string()> where_;
  std::size_t text_ = 0;               // index of the current text
  bool open_ = false;                  // that text has begun
  PerText<std::uint64_t> tokens_{};    // in the document so far
  std::vector<std::int32_t> ids_;      // of the current piece; the memory is reused
  std::vector<std::uint16_t> narrow_;  // the same ids in two bytes each; likewise
};

// Encodes documents with one text as they are read. Long ones are cut into pieces of about a MiB
// where the tokenizer allows a cut.
class DocumentEncoder : public RecordSink {
 public:
  // file: the unit's. The references must outlive the object.
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
  std::int64_t offset_ = 0;  // where the document begins in its file's text
  std::string text_;         // not encoded yet
  bool cut_ = false;         // text_ continues after a cut
  std::size_t enough_;       // size of text_ at which a cut is tried
};

}  // namespace trireme::data
