// Text from files made harmless for a terminal.
#ifndef TRIREME_SRC_TOOLS_PLAIN_TEXT_HPP_
#define TRIREME_SRC_TOOLS_PLAIN_TEXT_HPP_

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::tools {

// The text as valid UTF-8 in one line: newlines and tabs become blanks; other control characters
// (C0, DEL, C1), separators of lines, controls of direction and bytes that are no UTF-8 become
// U+FFFD. Cut to `most` characters, the last of which is then an ellipsis.
std::string OneLine(std::string_view text, std::size_t most = 400);

// Characters of valid UTF-8 as wide ones.
std::wstring Wide(std::string_view text);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_PLAIN_TEXT_HPP_
