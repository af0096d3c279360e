// Documents' bytes, checked to be UTF-8 or made so.
#ifndef TRIREME_SRC_DATA_TEXT_UTF8_FILTER_HPP_
#define TRIREME_SRC_DATA_TEXT_UTF8_FILTER_HPP_

#include <cstdint>
#include <string>
#include <string_view>

#include "documents.hpp"

namespace trireme::data {

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

#endif  // TRIREME_SRC_DATA_TEXT_UTF8_FILTER_HPP_
