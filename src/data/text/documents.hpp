// Splits a unit of work into its documents (files, lines, paragraphs or records), piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inputs.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"

namespace trireme::data {

// Reads a text line by line; a line that is too long for the buffer comes in several pieces.
class LineReader {
 public:
  // A line, or part of one. Valid until the next call.
  struct Piece {
    std::string_view text;    // without the end of line ("\n" or "\r\n")
    std::string_view ending;  // the line's end; empty within a line and at the end of the text
    std::int64_t offset = 0;  // bytes from the start of the text
    bool first = false, last = false;  // piece begins, ends its line
  };

  // source: must outlive the reader. offset: that of the source's first byte in the text.
  LineReader(TextSource& source, std::int64_t offset);

  // False at the end of the text.
  bool Next(Piece& piece);

 private:
  void Fill();

  TextSource& source_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // bytes in the buffer that are still to be returned
  std::int64_t offset_;              // offset in the text that corresponds to begin_
  bool ended_ = false, first_ = true;
};

inline constexpr std::int64_t kUnitBytes = std::int64_t{4} << 20;  // size of a unit in a plain file

// A unit of work: the documents of `file` that begin within bytes [begin, end).
struct TextUnit {
  std::size_t file = 0;  // index in the list of files
  std::int64_t begin = 0, end = 0;
};

// Cuts files into units, ordered by file and byte, the same for any number of ranks. A file that
// cannot be entered in its middle (packed, or a single document) is one unit.
std::vector<TextUnit> CutIntoUnits(std::span<const TextFile> files, DocumentEnd document,
                                   std::int64_t range_bytes);

// Indices of the units that a rank works on, ascending. All ranks get about as many bytes.
std::vector<std::size_t> UnitsOfRank(std::span<const TextUnit> units,
                                     std::span<const TextFile> files, int rank, int ranks);

// Receives documents piece by piece. If no byte comes before End, there is no document.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  // The next piece of the document. offset: where the piece begins in its file's text.
  virtual void Text(std::string_view piece, std::int64_t offset) = 0;
  virtual void End() = 0;  // ends the document
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

// Receives records: documents whose text follows a prompt. Prompt, even an empty one, opens the
// document.
class RecordSink : public DocumentSink {
 public:
  virtual void Prompt(std::string_view text, std::int64_t offset) = 0;
};

// Called about once per MiB with the bytes of the unit that are done; may throw.
using UnitProgress = std::function<void(std::int64_t)>;

// Throws RunError if `stop` (may be empty) returns true.
void RequireGoingOn(const std::function<bool()>& stop);
// The same as a function, which also polls. Both arguments must outlive it.
inline auto Asking(const std::function<bool()>& stop, const comm::Poll& poll) {
  return [&] {
    RequireGoingOn(stop);
    poll();
  };
}

// Hands a unit's documents to `sink`. Byte order marks of plain text are dropped. A document of
// lines or paragraphs comes without its last line end; in JSON lines, each line is a document.
void ForEachDocument(const TextFile& file, const TextUnit& unit, DocumentEnd document,
                     DocumentSink& sink, const UnitProgress& progress);

// Members of JSON records (one per line) that hold their texts.
struct RecordKeys {
  std::string text = "text";
  std::string prompt;         // empty: records have none
  bool skip_missing = false;  // drop records in which one of them is absent or null
};

// Parses JSON lines and passes the texts of their members on. Blank lines are skipped. Throws
// InputError with the file's path and the record's offset if a line is not a JSON object, or if a
// wanted member is missing or not a text. Other members are not checked.
class JsonRecords : public DocumentSink {
 public:
  // next, keys: must outlive the object. replace: lone surrogates become U+FFFD.
  JsonRecords(RecordSink& next, const RecordKeys& keys, std::string path, bool replace);

  void Text(std::string_view piece, std::int64_t offset) override;
  void End() override;
  std::int64_t Replaced() const { return replaced_; }  // number of lone surrogates
  std::int64_t Empty() const { return empty_; }      // records without any text, which are dropped
  std::int64_t Missing() const { return missing_; }  // records dropped for an absent or null member

 private:
  RecordSink& next_;
  const RecordKeys& keys_;
  std::string path_;
  std::string line_;
  bool replace_;
  std::int64_t offset_ = 0;  // where the line begins in its file's text
  std::int64_t replaced_ = 0, empty_ = 0, missing_ = 0;
};

// Makes sure that documents are valid UTF-8.
class Utf8Filter : public DocumentSink {
 public:
  // Passes valid UTF-8 on to `next`, which must outlive the object. An invalid sequence is an
  // InputError with `path` and the byte's offset in the text or, with `replace`, becomes U+FFFD:
  // one for each maximal part of a character, as Unicode recommends.
  Utf8Filter(DocumentSink& next, std::string path, bool replace);

  void Text(std::string_view piece, std::int64_t offset) override;
  void End() override;
  std::int64_t Replaced() const { return replaced_; }  // number of invalid sequences

 private:
  void Pass(std::string_view text, std::int64_t offset, bool ended);
  void Invalid(std::string_view bytes, std::int64_t offset);

  DocumentSink& next_;
  std::string path_;
  bool replace_;
  std::string held_;  // beginning of a character whose rest has not come yet
  std::int64_t held_offset_ = 0;
  std::int64_t replaced_ = 0;
};

}  // namespace trireme::data
