// Text from a model, made safe to show.
#ifndef TRIREME_SRC_TASKS_PRINTABLE_HPP_
#define TRIREME_SRC_TASKS_PRINTABLE_HPP_

#include <string>
#include <string_view>

namespace trireme::tasks {

// The text with control characters (but newline and tab) and bytes that are not UTF-8 replaced by
// U+FFFD: a byte-level model may write anything, and a terminal must survive it.
inline std::string Printable(std::string_view text) {
  std::string out;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char lead = byte(i);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xC2 ? 0
                               : lead < 0xE0 ? 2
                               : lead < 0xF0 ? 3
                               : lead < 0xF5 ? 4
                                             : 0;
    bool good = length > 0 && i + length <= text.size();
    for (std::size_t k = 1; good && k < length; ++k) good = (byte(i + k) & 0xC0) == 0x80;
    if (good && length == 1) good = (lead >= 0x20 && lead != 0x7F) || lead == '\n' || lead == '\t';
    if (good) {
      out.append(text.substr(i, length));
      i += length;
    } else {
      out.append("\xEF\xBF\xBD");
      ++i;
    }
  }
  return out;
}

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_PRINTABLE_HPP_
