// The text of a continuation while its tokens come: where it ends, and what of it can be shown.
#ifndef TRIREME_SRC_TASKS_GROWING_TEXT_HPP_
#define TRIREME_SRC_TASKS_GROWING_TEXT_HPP_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/token_file.hpp"

namespace trireme::tasks {

class GrowingText {
 public:
  // before: tokens of the prompt. Both arguments outlive this.
  GrowingText(const data::TokenFile& tokens, std::vector<std::int32_t> before,
              const std::vector<std::string>& stops);
  // True if the text has a stop string now, at which it ends.
  bool Add(std::span<const std::int32_t> tokens);
  const std::string& Text() const { return text_; }
  // Text added since the last call, without an unfinished character and without what may be the
  // beginning of a stop string; all of it at the end.
  std::string Take(bool end);

 private:
  const data::TokenFile& tokens_;
  std::vector<std::int32_t> ids_;
  const std::vector<std::string>& stops_;
  std::size_t prompt_bytes_;
  std::string text_;
  std::size_t taken_ = 0;  // bytes
};

// Bytes of `text` without an unfinished UTF-8 character at its end.
std::size_t WholeCharacters(const std::string& text);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_GROWING_TEXT_HPP_
