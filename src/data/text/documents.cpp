// A document belongs to the unit in which it begins: a line by its first byte, a paragraph by the
// last blank line before it. So each unit finds its documents without its neighbours.
#include "documents.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>

#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::data {

static constexpr std::size_t kTextBuffer = std::size_t{1} << 20;  // bytes
static constexpr std::int64_t kMagic = 4;                         // bytes that tell a packed file

LineReader::LineReader(TextSource& source, std::int64_t offset)
    : source_(source), buffer_(kTextBuffer), offset_(offset) {}

void LineReader::Fill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  const std::span<char> room = std::span(buffer_).subspan(end_);
  const std::size_t got = source_.Read(room);
  ended_ = got < room.size();
  end_ += got;
}

bool LineReader::Next(Piece& piece) {
  const auto find = [&](std::size_t from) {
    return static_cast<const char*>(std::memchr(buffer_.data() + from, '\n', end_ - from));
  };
  const char* line_end = find(begin_);
  if (line_end == nullptr && !ended_) {
    const std::size_t known = end_ - begin_;
    Fill();
    line_end = find(known);
  }
  if (begin_ == end_) return false;
  const char* const begin = buffer_.data() + begin_;
  std::size_t length = end_ - begin_, ending = 0;
  if (line_end != nullptr) {
    length = static_cast<std::size_t>(line_end - begin);
    ending = 1;
    if (length > 0 && begin[length - 1] == '\r') --length, ++ending;
  } else if (!ended_ && begin[length - 1] == '\r') {
    --length;  // it may belong to a line end
  }
  piece = {.text = {begin, length},
           .ending = {begin + length, ending},
           .offset = offset_,
           .first = first_,
           .last = line_end != nullptr || ended_};
  first_ = piece.last;
  begin_ += length + ending;
  offset_ += static_cast<std::int64_t>(length + ending);
  return true;
}

namespace {

constexpr std::size_t kShownBytes = 100;  // bytes of a value in a message

bool IsHigh(unsigned code) { return code >= 0xD800 && code < 0xDC00; }
bool IsLow(unsigned code) { return code >= 0xDC00 && code < 0xE000; }

// Shows a value that is not a text, for a message.
std::string Shown(std::string_view value) {
  if (const auto json = deck::TryParseJson(value, std::int64_t{1} << 20)) {
    return deck::Brief(*json);
  }
  return deck::Shown(std::string(value.substr(0, kShownBytes)));
}

// Reads one line of JSON in a single pass, by RFC 8259's grammar. Values of unwanted members are
// skipped by their brackets and quotes alone: NaN, 1e999 and half surrogates in them are no errors,
// although JSON libraries refuse them. Invalid UTF-8 is left to Utf8Filter.
class RecordScan {
 public:
  // line: must outlive the scan. where: for messages. replace: a lone surrogate (\ud83d without its
  // other half), which UTF-8 cannot express, becomes U+FFFD; otherwise it is an error.
  RecordScan(std::string_view line, std::string where, bool replace)
      : line_(line), where_(std::move(where)), replace_(replace) {}

  // A wanted member. key: "text", or "data.text" for the member `text` of the object `data`.
  struct Wanted {
    std::string_view key;
    std::optional<std::string> text = {};  // nullopt: the record has no such member, or it is null
    bool is_null = false;
  };
  // Fills in the wanted members. Throws InputError with the byte in the record if it is not JSON or
  // not an object, or if a wanted member is not a text or occurs twice.
  void Read(std::span<Wanted> wanted) {
    SkipBlanks();
    if (at_ < line_.size() && line_[at_] != '{') {
      const auto size = static_cast<std::int64_t>(line_.size());
      Refuse("an object expected, " + deck::Brief(deck::ParseJson(line_, where_, size)) + " found");
    }
    Object(wanted);
    SkipBlanks();
    if (at_ != line_.size()) Broken("text after the record's end");
  }
  std::int64_t Replaced() const { return replaced_; }

 private:
  [[noreturn]] void Refuse(const std::string& what, const std::string& hint = {}) const {
    throw InputError(fmt::format("{}: {}", where_, what), hint);
  }
  [[noreturn]] void Broken(const std::string& reason) const {
    Refuse(fmt::format("byte {}: not valid JSON: {}", at_, reason));
  }

  void SkipBlanks() { at_ = std::min(line_.find_first_not_of(" \t\r", at_), line_.size()); }
  bool Next(char wanted) const { return at_ < line_.size() && line_[at_] == wanted; }
  // Consumes `wanted` if it comes next.
  bool Take(char wanted) {
    if (!Next(wanted)) return false;
    ++at_;
    return true;
  }
  void Expect(char wanted) {
    if (Take(wanted)) return;
    Broken(at_ == line_.size() ? fmt::format("it ends where '{}' is expected", wanted)
                               : fmt::format("'{}' is expected", wanted));
  }

  void Object(std::span<Wanted> wanted) {
    Expect('{');
    SkipBlanks();
    if (Take('}')) return;
    do {
      SkipBlanks();
      Member(wanted);
      SkipBlanks();
    } while (Take(','));
    Expect('}');
  }

  void Member(std::span<Wanted> wanted) {
    const std::string key = within_ + Text(false);
    SkipBlanks();
    Expect(':');
    SkipBlanks();
    bool found = false, inside = false;
    for (const Wanted& one : wanted) {
      if (one.key == key && one.text) {
        Refuse(fmt::format("\"{}\" is named twice", deck::Shown(key)));
      }
      found = found || one.key == key;
      inside = inside || one.key.starts_with(key + ".");
    }
    if (!found) {
      if (!inside || !Next('{')) return SkipValue();
      const std::string outside = std::exchange(within_, key + ".");
      Object(wanted);
      within_ = outside;
      return;
    }
    std::optional<std::string> text;
    const std::size_t begin = at_;
    if (at_ == line_.size() || Next('"')) {
      text = Text(true);
    } else {
      SkipValue();
      const std::string_view value = line_.substr(begin, at_ - begin);
      if (value != "null") {
        Refuse(fmt::format("\"{}\" is not a text but {}", deck::Shown(key), Shown(value)));
      }
    }
    for (Wanted& one : wanted) {
      if (one.key != key) continue;
      one.is_null = one.is_null || !text;
      one.text = text;
    }
  }

  // Reads a string with its quotes. judged: its lone surrogates are counted or refused.
  std::string Text(bool judged) {
    Expect('"');
    std::string text;
    for (;;) {
      const std::size_t begin = at_;
      while (at_ < line_.size() && line_[at_] != '"' && line_[at_] != '\\' &&
             static_cast<unsigned char>(line_[at_]) >= 0x20) {
        ++at_;
      }
      text.append(line_, begin, at_ - begin);
      if (at_ == line_.size()) Broken("the end of a text is missing");
      if (Take('"')) return text;
      if (!Take('\\')) Broken("a control character in a text");
      Escape(text, judged);
    }
  }

  // Reads an escape, after its backslash.
  void Escape(std::string& text, bool judged) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (at_ == line_.size()) Broken("the end of a text is missing");
    if (const std::size_t name = kNames.find(line_[at_]); name != std::string_view::npos) {
      text += kMeant[name];
      ++at_;
      return;
    }
    if (!Take('u')) Broken("an escape that JSON does not have");
    unsigned code = Digits();
    if (IsHigh(code) && line_.substr(at_, 2) == "\\u") {
      const std::size_t after = at_;
      at_ += 2;
      const unsigned low = Digits();
      if (IsLow(low)) {
        code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
      } else {
        at_ = after;
      }
    }
    if (IsHigh(code) || IsLow(code)) {
      if (judged && !replace_) {
        Refuse(fmt::format("byte {}: \\u{:04x} is half of a surrogate pair, which no text has", at_,
                           code),
               "tokenize.invalid = replace puts U+FFFD in its place.");
      }
      if (judged) ++replaced_;
      code = kReplacementCode;
    }
    AppendUtf8(code, text);
  }

  // Reads the four hexadecimal digits of \u.
  unsigned Digits() {
    unsigned code = 0;
    const std::string_view digits = line_.substr(at_, 4);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() < 4 || read.ptr != digits.data() + 4) {
      Broken("four hexadecimal digits expected");
    }
    at_ += 4;
    return code;
  }

  void SkipText() {
    ++at_;
    for (;;) {
      at_ = std::min(line_.find_first_of("\"\\", at_), line_.size());
      if (Take('"')) return;
      at_ = std::min(at_ + 2, line_.size());  // a backslash and what it escapes
      if (at_ == line_.size()) Broken("the end of a text is missing");
    }
  }

  void SkipValue() {
    std::string closers;  // closing brackets still expected, innermost last
    const std::size_t begin = at_;
    while (at_ < line_.size()) {
      const char c = line_[at_];
      if (closers.empty() && (c == ',' || c == '}' || c == ']')) break;
      if (c == '"') {
        SkipText();
        continue;
      }
      if (c == '{') closers += '}';
      if (c == '[') closers += ']';
      if (c == '}' || c == ']') {
        if (closers.back() != c) Broken(fmt::format("'{}' is expected", closers.back()));
        closers.pop_back();
      }
      ++at_;
    }
    if (!closers.empty()) Broken(fmt::format("'{}' is missing", closers.back()));
    if (at_ == begin) Broken("a value is expected");
  }

  std::string_view line_;
  std::string where_;
  bool replace_;
  std::size_t at_ = 0;
  std::string within_;  // enclosing objects: "data." within the object `data`
  std::int64_t replaced_ = 0;
};

// Removes a byte order mark at the beginning of a line: the text's, or that of a file that was
// appended to another.
void DropMark(std::string_view& piece, std::int64_t& offset) {
  if (!piece.starts_with(kByteOrderMark)) return;
  piece.remove_prefix(kByteOrderMark.size());
  offset += static_cast<std::int64_t>(kByteOrderMark.size());
}

bool IsBlank(const LineReader::Piece& piece) {
  return piece.first && piece.last &&
         piece.text.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

// Length of the longest end of `piece` that is a beginning of `wanted`, but not all of it.
std::size_t BeginningAtEnd(std::string_view piece, std::string_view wanted) {
  std::size_t count = wanted.size() - 1;
  while (!piece.ends_with(wanted.substr(0, count))) --count;
  return count;
}

void WholeFile(TextSource& source, DocumentSink& sink, const UnitProgress& progress) {
  const std::string mark_of_line = "\n" + std::string(kByteOrderMark);
  std::vector<char> buffer(kTextBuffer);
  std::size_t held = 0;  // bytes kept at the buffer's start from the last read
  bool begins = true;    // at the start of the text
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

// The lines from the first that begins in the unit on, in pieces and without byte order marks.
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
    // A line begins exactly at the unit's first byte if a line end precedes it.
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
  bool crossed_ = false;  // one line extends from before the unit to beyond its end
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
  bool mine = at_begin;  // the next lines belong to this unit's paragraphs
  bool open = false;     // within a paragraph
  std::string ending;    // line end of the line before; part of the paragraph if that continues
  LineReader::Piece piece;
  while (lines.Next(piece)) {
    if (IsBlank(piece)) {
      if (open) sink.End();
      open = false;
      mine = true;
      if (lines.IsBeyond(piece)) return;
      continue;
    }
    // The unit has no blank line: all its lines belong to a paragraph of an earlier unit.
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

// Limit of a line, which is kept in memory, in bytes.
constexpr std::int64_t kMaxRecord = std::int64_t{1} << 30;

// The text of a member; throws InputError if there is none.
const std::string& TextOf(const RecordScan::Wanted& member, const std::string& deck_key,
                          const std::string& where) {
  if (member.text) return *member.text;
  constexpr const char* kSkip = "tokenize.missing = skip leaves such records out";
  if (member.is_null) {
    throw InputError(fmt::format("{}: \"{}\" is not a text but null", where, member.key),
                     fmt::format("{}.", kSkip));
  }
  throw InputError(fmt::format("{}: the record has no \"{}\"", where, member.key),
                   fmt::format("{} names the member that holds the text; {}.", deck_key, kSkip));
}

// Where an editor finds byte `offset` of the text of a file: its line, counted up to a GiB, or a
// command that shows it. Only for messages.
std::string HowToSee(const std::string& path, std::int64_t offset) {
  constexpr std::int64_t kMostCounted = std::int64_t{1} << 30;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "It comes from standard input.";
  std::ifstream file(path, std::ios::binary);
  std::string block(kTextBuffer, '\0');
  file.read(block.data(), kMagic);
  const std::string_view magic(block.data(), static_cast<std::size_t>(file.gcount()));
  const bool zstd = magic.starts_with("\x28\xB5\x2F\xFD");
  if (zstd || magic.starts_with("\x1F\x8B")) {
    return fmt::format("To see it: {} {} | tail -c +{} | head -n 1", zstd ? "zstdcat" : "zcat",
                       path, offset + 1);
  }
  if (offset > kMostCounted) {
    return fmt::format("To see it: tail -c +{} {} | head -n 1", offset + 1, path);
  }
  file.clear();
  file.seekg(0);
  std::int64_t line = 1;
  for (std::int64_t left = offset; left > 0 && file; left -= file.gcount()) {
    file.read(block.data(), std::min<std::int64_t>(left, std::ssize(block)));
    line += std::count(block.data(), block.data() + file.gcount(), '\n');
  }
  return fmt::format("It is on line {} of the file.", line);
}

}  // namespace

std::vector<TextUnit> CutIntoUnits(std::span<const TextFile> files, DocumentEnd document,
                                   std::int64_t range_bytes) {
  std::vector<TextUnit> units;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const TextFile& file = files[f];
    const bool whole =
        file.packing != Packing::kNone || (!file.json_lines && document == DocumentEnd::kFile);
    const std::int64_t step = whole ? std::max<std::int64_t>(file.bytes, 1) : range_bytes;
    for (std::int64_t begin = 0; begin < file.bytes; begin += step) {
      units.push_back({f, begin, std::min(begin + step, file.bytes)});
    }
  }
  return units;
}

std::vector<std::size_t> UnitsOfRank(std::span<const TextUnit> units,
                                     std::span<const TextFile> files, int rank, int ranks) {
  constexpr std::int64_t kPackedWeight = 3;  // text per packed byte, estimated
  // Largest units first, each to the rank with the least work so far.
  const auto weight = [&](std::size_t unit) {
    const TextUnit& one = units[unit];
    const bool packed = files[one.file].packing != Packing::kNone;
    return (one.end - one.begin) * (packed ? kPackedWeight : 1);
  };
  std::vector<std::size_t> order(units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weight(a) > weight(b); });
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  std::vector<std::size_t> mine;
  for (const std::size_t unit : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += weight(unit);
    if (least - loads.begin() == rank) mine.push_back(unit);
  }
  std::sort(mine.begin(), mine.end());
  return mine;
}

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

void RequireGoingOn(const std::function<bool()>& stop) {
  if (stop && stop()) throw RunError("stopped by a signal: no token file was written");
}

JsonRecords::JsonRecords(RecordSink& next, const RecordKeys& keys, std::string path, bool replace)
    : next_(next), keys_(keys), path_(std::move(path)), replace_(replace) {}

void JsonRecords::Text(std::string_view piece, std::int64_t offset) {
  if (line_.empty()) offset_ = offset;
  if (static_cast<std::int64_t>(line_.size() + piece.size()) > kMaxRecord) {
    throw InputError(fmt::format("{}: the record at byte {} is longer than {} bytes", path_,
                                 offset_, kMaxRecord));
  }
  line_ += piece;
}

void JsonRecords::End() {
  const std::string line = std::exchange(line_, {});
  if (line.find_first_not_of(" \t\r") == std::string::npos) return;
  const std::string where = fmt::format("{}: record at byte {}", path_, offset_);
  std::array<RecordScan::Wanted, 2> wanted = {{{.key = keys_.text}, {.key = keys_.prompt}}};
  const auto& [text, prompt] = wanted;
  const bool prompted = !keys_.prompt.empty();
  std::string_view own, asked;
  try {
    RecordScan scan(line, where, replace_);
    scan.Read(std::span(wanted).first(prompted ? 2 : 1));
    replaced_ += scan.Replaced();
    if (keys_.skip_missing && (!text.text || (prompted && !prompt.text))) {
      ++missing_;
      return;
    }
    own = TextOf(text, "tokenize.text_key", where);
    if (prompted) asked = TextOf(prompt, "tokenize.prompt_key", where);
  } catch (const Error& error) {
    throw InputError(error.what(), HowToSee(path_, offset_));
  }
  if (prompted) next_.Prompt(asked, offset_);
  if (own.empty() && !prompted) ++empty_;
  next_.Text(own, offset_);
  next_.End();
}

Utf8Filter::Utf8Filter(DocumentSink& next, std::string path, bool replace)
    : next_(next), path_(std::move(path)), replace_(replace) {}

void Utf8Filter::Invalid(std::string_view bytes, std::int64_t offset) {
  if (!replace_) {
    throw InputError(
        fmt::format("{}: byte 0x{:02x} at offset {} is not valid UTF-8", path_,
                    static_cast<unsigned char>(bytes[0]), offset),
        "Convert the text to UTF-8; tokenize.invalid = replace puts U+FFFD in its place.\n  " +
            HowToSee(path_, offset));
  }
  ++replaced_;
  next_.Text(kReplacementCharacter, offset);
}

void Utf8Filter::Pass(std::string_view text, std::int64_t offset, bool ended) {
  // `begin` is the start of what is not passed on yet; everything before `at` is valid.
  std::size_t begin = 0, at = 0;
  const auto pass = [&](std::size_t until) {
    if (until > begin) {
      next_.Text(text.substr(begin, until - begin), offset + static_cast<std::int64_t>(begin));
    }
  };
  for (at = AsciiEnd(text); at < text.size(); at = AsciiEnd(text, at)) {
    const std::string_view rest = text.substr(at);
    const std::size_t good = WellFormedBytes(rest);
    if (good > 0 && good == CharacterBytes(rest[0])) {
      at += good;
      continue;
    }
    pass(at);
    const std::int64_t here = offset + static_cast<std::int64_t>(at);
    if (good == rest.size() && !ended) {
      held_ = rest;
      held_offset_ = here;
      return;
    }
    const std::size_t bad = std::max<std::size_t>(good, 1);
    Invalid(rest.substr(0, bad), here);
    at += bad;
    begin = at;
  }
  pass(at);
}

void Utf8Filter::Text(std::string_view piece, std::int64_t offset) {
  if (!held_.empty()) {
    // Three bytes at most complete the character that is held, or show that it is invalid.
    constexpr std::size_t kMostMissing = 3;
    std::string bridge = std::exchange(held_, {});
    const std::size_t had = bridge.size();
    const std::size_t length = CharacterBytes(bridge[0]);
    const std::size_t taken = std::min({length - had, piece.size(), kMostMissing});
    bridge += piece.substr(0, taken);
    const std::size_t good = WellFormedBytes(bridge);
    // Bytes after the fault may begin another character: they stay in `piece`.
    const std::size_t used = good == bridge.size() ? taken : good - had;
    bridge.resize(had + used);
    const bool open = good == had + taken && good < length;  // more bytes are missing
    Pass(bridge, held_offset_, !open);
    piece.remove_prefix(used);
    offset += static_cast<std::int64_t>(used);
  }
  if (!piece.empty()) Pass(piece, offset, false);
}

void Utf8Filter::End() {
  const std::string rest = std::exchange(held_, {});
  if (!rest.empty()) Pass(rest, held_offset_, true);
  next_.End();
}

}  // namespace trireme::data
