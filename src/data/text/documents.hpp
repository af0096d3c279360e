// The documents of a unit: files, lines, paragraphs or records, handed on piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inputs.hpp"
#include "trireme/data/options.hpp"

namespace trireme::data {

// Lines of a text, those that are too long for a buffer in several pieces.

class LineReader {
 public:
  // A line, or a part of one. Valid until the next call.
  struct Piece {
    std::string_view text;    // without the end of line ("\n" or "\r\n")
    std::string_view ending;  // end of line; empty for a part of a line and at the end of the text
    std::int64_t offset = 0;  // of the piece in the text
    bool first = false, last = false;  // of its line
  };

  // `offset`: of the source's first byte in the text. The source must live longer.
  LineReader(TextSource& source, std::int64_t offset);

  // False at the end of the text.
  bool Next(Piece& piece);

 private:
  void Fill();

  TextSource& source_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what is in the buffer
  std::int64_t offset_;              // of begin_
  bool ended_ = false, first_ = true;
};

// Pieces of work: ranges of plain files and whole packed files, the same for any number of ranks.

inline constexpr std::int64_t kUnitBytes = std::int64_t{4} << 20;  // of a range of a plain file

// The documents of `file` that begin within [begin, end).
struct TextUnit {
  std::size_t file = 0;  // its place in the list
  std::int64_t begin = 0, end = 0;
};

// Units in the order of their documents: of the files, then of the bytes. A file that cannot be
// entered in its middle (packed, or one document) is one unit.
std::vector<TextUnit> CutIntoUnits(std::span<const TextFile> files, DocumentEnd document,
                                   std::int64_t range_bytes);

// Places in `units` that a rank works on, ascending; all ranks get about as many bytes.
std::vector<std::size_t> UnitsOfRank(std::span<const TextUnit> units,
                                     std::span<const TextFile> files, int rank, int ranks);

// Takes documents. One of which no byte comes is none.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  // The next piece of the document; `offset`: of the piece in its file's text.
  virtual void Text(std::string_view piece, std::int64_t offset) = 0;
  virtual void End() = 0;  // of the document
};

// Appends all texts to a string.
class WholeText : public DocumentSink {
 public:
  explicit WholeText(std::string& text) : text_(text) {}
  void Text(std::string_view piece, std::int64_t /*offset*/) override { text_ += piece; }
  void End() override {}

 private:
  std::string& text_;
};

// Takes records: documents with a text before their own, which may be empty and opens the document.
class RecordSink : public DocumentSink {
 public:
  virtual void Prompt(std::string_view text, std::int64_t offset) = 0;
};

// Called about every MiB with the bytes of the unit that are done; may throw.
using UnitProgress = std::function<void(std::int64_t)>;

// Throws RunError if `stop`, which may be empty, says so.
void RequireGoingOn(const std::function<bool()>& stop);

// Hands the unit's documents to `sink`. A plain text's byte order mark is dropped. A document of
// lines or paragraphs is without the end of its last line; a record of JSON lines is its line.
void ForEachDocument(const TextFile& file, const TextUnit& unit, DocumentEnd document,
                     DocumentSink& sink, const UnitProgress& progress);

// JSON lines: from records to the texts of their members.

struct RecordKeys {
  std::string text = "text";
  std::string prompt;         // empty: records have none
  bool skip_missing = false;  // records that lack one of them, or have null, are left out
};

// Takes lines; a line of blanks is none. Throws InputError with the file's path and the offset of
// the record for what is not JSON, not an object, and for a member that is missing or no text.
// Other members are not judged.
class JsonRecords : public DocumentSink {
 public:
  // The references must live longer. replace: lone surrogates become U+FFFD.
  JsonRecords(RecordSink& next, const RecordKeys& keys, std::string path, bool replace);

  void Text(std::string_view piece, std::int64_t offset) override;
  void End() override;
  std::int64_t Replaced() const { return replaced_; }  // lone surrogates
  std::int64_t Empty() const { return empty_; }        // records that are left out: no text at all
  std::int64_t Missing() const { return missing_; }    // likewise: a member is missing, or null

 private:
  RecordSink& next_;
  const RecordKeys& keys_;
  std::string path_;
  std::string line_;
  bool replace_;
  std::int64_t offset_ = 0;  // of the line
  std::int64_t replaced_ = 0, empty_ = 0, missing_ = 0;
};

// Documents' bytes, checked to be UTF-8 or made so.

class Utf8Filter : public DocumentSink {
 public:
  // Passes valid UTF-8 on to `next`, which must live longer. A sequence that is none is an
  // InputError with `path` and the byte's offset in the text, or, with `replace`, becomes U+FFFD:
  // one for each longest part of a character, as Unicode recommends.
  Utf8Filter(DocumentSink& next, std::string path, bool replace);

  void Text(std::string_view piece, std::int64_t offset) override;
  void End() override;
  std::int64_t Replaced() const { return replaced_; }  // sequences

 private:
  void Pass(std::string_view text, std::int64_t offset, bool ended);
  void Invalid(std::string_view bytes, std::int64_t offset);

  DocumentSink& next_;
  std::string path_;
  bool replace_;
  std::string held_;  // beginning of a character whose end has not come
  std::int64_t held_offset_ = 0;
  std::int64_t replaced_ = 0;
};

}  // namespace trireme::data
