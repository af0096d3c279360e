// Documents that belong to a unit: lines that begin in it, and paragraphs whose last blank line
// before them begins in it, so that each unit finds its own without its neighbours.
#include "documents.hpp"

#include <memory>
#include <string>
#include <vector>

#include "line_reader.hpp"

namespace trireme::data {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kFileBuffer = std::size_t{1} << 20;  // bytes

// Removes the mark from the first piece of a text.
void DropMark(std::string_view& piece, std::int64_t& offset) {
  if (offset != 0 || !piece.starts_with(kByteOrderMark)) return;
  piece.remove_prefix(kByteOrderMark.size());
  offset += static_cast<std::int64_t>(kByteOrderMark.size());
}

bool IsBlank(const LineReader::Piece& piece) {
  return piece.first && piece.last &&
         piece.text.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

void WholeFile(TextSource& source, DocumentSink& sink, const UnitProgress& progress) {
  std::vector<char> buffer(kFileBuffer);
  for (std::int64_t offset = 0;;) {
    const std::size_t got = source.Read(buffer);
    std::string_view piece(buffer.data(), got);
    std::int64_t at = offset;
    DropMark(piece, at);
    if (!piece.empty()) sink.Text(piece, at);
    offset += static_cast<std::int64_t>(got);
    progress(source.BytesRead());
    if (got < buffer.size()) break;
  }
  sink.End();
}

// Pieces of the lines from the first that begins in the unit on, without the byte order mark.
class UnitLines {
 public:
  UnitLines(const TextFile& file, const TextUnit& unit, const UnitProgress& progress)
      : packed_(file.packing != Packing::kNone),
        end_(unit.end),
        begin_(unit.begin == 0 ? 0 : unit.begin - 1),
        source_(OpenText(file, begin_)),
        lines_(*source_, begin_),
        progress_(progress) {
    LineReader::Piece piece;
    // A line begins at the unit's first byte if an end of line is before it.
    while (unit.begin > 0 && lines_.Next(piece) && !piece.last) {
      const auto length = static_cast<std::int64_t>(piece.text.size());
      if (!packed_ && piece.offset + length >= end_) {
        crossed_ = true;
        return;
      }
    }
  }

  bool Next(LineReader::Piece& piece) {
    if (source_->BytesRead() != told_) progress_(told_ = source_->BytesRead());
    if (crossed_ || !lines_.Next(piece)) return false;
    DropMark(piece.text, piece.offset);
    return true;
  }
  // Whether a line that begins with `piece` belongs to a later unit.
  bool IsBeyond(const LineReader::Piece& piece) const { return !packed_ && piece.offset >= end_; }

 private:
  bool packed_;
  bool crossed_ = false;  // by one line, from before the unit to beyond its end
  std::int64_t end_, begin_, told_ = 0;
  std::unique_ptr<TextSource> source_;
  LineReader lines_;
  const UnitProgress& progress_;
};

void EachLine(UnitLines& lines, DocumentSink& sink) {
  LineReader::Piece piece;
  while (lines.Next(piece)) {
    if (piece.first && lines.IsBeyond(piece)) return;
    if (!piece.text.empty()) sink.Text(piece.text, piece.offset);
    if (piece.last) sink.End();
  }
}

void EachParagraph(UnitLines& lines, bool at_begin, DocumentSink& sink) {
  bool mine = at_begin;  // the lines that follow are of this unit's paragraphs
  bool open = false;     // within a paragraph
  std::string ending;    // of the line before: part of the paragraph if it goes on
  LineReader::Piece piece;
  while (lines.Next(piece)) {
    if (IsBlank(piece)) {
      if (open) sink.End();
      open = false;
      mine = true;
      if (lines.IsBeyond(piece)) return;
      continue;
    }
    // No blank line of this unit before the lines of another's paragraph that go beyond its end.
    if (!mine && piece.first && lines.IsBeyond(piece)) return;
    if (!mine) continue;
    if (open && piece.first) {
      sink.Text(ending, piece.offset - static_cast<std::int64_t>(ending.size()));
    }
    open = true;
    if (!piece.text.empty()) sink.Text(piece.text, piece.offset);
    if (piece.last) ending = piece.ending;
  }
  if (open) sink.End();
}

}  // namespace

void ForEachDocument(const TextFile& file, const TextUnit& unit, DocumentEnd document,
                     DocumentSink& sink, const UnitProgress& progress) {
  if (!file.json_lines && document == DocumentEnd::kFile) {
    WholeFile(*OpenText(file, 0), sink, progress);
    return;
  }
  UnitLines lines(file, unit, progress);
  if (file.json_lines || document == DocumentEnd::kLine) {
    EachLine(lines, sink);
  } else {
    EachParagraph(lines, unit.begin == 0, sink);
  }
}

}  // namespace trireme::data
