// Documents that belong to a unit: lines that begin in it, and paragraphs whose last blank line
// before them begins in it, so that each unit finds its own without its neighbours.
#include "documents.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "line_reader.hpp"

namespace trireme::data {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kFileBuffer = std::size_t{1} << 20;  // bytes

// Removes the mark from a piece that begins a line: of the text, or of a file that was joined to
// others.
void DropMark(std::string_view& piece, std::int64_t& offset) {
  if (!piece.starts_with(kByteOrderMark)) return;
  piece.remove_prefix(kByteOrderMark.size());
  offset += static_cast<std::int64_t>(kByteOrderMark.size());
}

bool IsBlank(const LineReader::Piece& piece) {
  return piece.first && piece.last &&
         piece.text.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

// Bytes at the end of `piece` that begin `wanted`, but are not all of it.
std::size_t BeginningAtEnd(std::string_view piece, std::string_view wanted) {
  std::size_t count = wanted.size() - 1;
  while (!piece.ends_with(wanted.substr(0, count))) --count;
  return count;
}

void WholeFile(TextSource& source, DocumentSink& sink, const UnitProgress& progress) {
  const std::string mark_of_line = "\n" + std::string(kByteOrderMark);
  std::vector<char> buffer(kFileBuffer);
  std::size_t held = 0;  // bytes at the buffer's begin, from the read before
  bool begins = true;    // of the text
  for (std::int64_t offset = 0;;) {
    const std::span<char> room = std::span(buffer).subspan(held);
    const std::size_t got = source.Read(room);
    const bool ended = got < room.size();
    const std::string_view all(buffer.data(), held + got);
    held = ended ? 0 : BeginningAtEnd(all, mark_of_line);
    std::string_view rest = all.substr(0, all.size() - held);
    std::int64_t at = offset;
    offset += static_cast<std::int64_t>(rest.size());
    if (std::exchange(begins, false)) DropMark(rest, at);
    while (!rest.empty()) {
      const std::size_t mark = rest.find(mark_of_line);
      const std::string_view piece =
          rest.substr(0, mark == std::string_view::npos ? mark : mark + 1);
      sink.Text(piece, at);
      rest.remove_prefix(piece.size());
      at += static_cast<std::int64_t>(piece.size());
      if (mark != std::string_view::npos) DropMark(rest, at);
    }
    std::copy(all.end() - static_cast<std::ptrdiff_t>(held), all.end(), buffer.begin());
    progress(source.BytesRead());
    if (ended) break;
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
    if (piece.first) DropMark(piece.text, piece.offset);
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
