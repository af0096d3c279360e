// Lines of a text, those that are too long for a buffer in several pieces.
#ifndef TRIREME_SRC_DATA_TEXT_LINE_READER_HPP_
#define TRIREME_SRC_DATA_TEXT_LINE_READER_HPP_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text_source.hpp"

namespace trireme::data {

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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_LINE_READER_HPP_
