// A buffer that moves along the text.
#include "line_reader.hpp"

#include <cstring>
#include <span>

namespace trireme::data {

namespace {

constexpr std::size_t kLineBuffer = std::size_t{1} << 20;  // bytes

}  // namespace

LineReader::LineReader(TextSource& source, std::int64_t offset)
    : source_(source), buffer_(kLineBuffer), offset_(offset) {}

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
    --length;  // maybe of an end of line
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

}  // namespace trireme::data
