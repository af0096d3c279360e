// Text from a user or a file, made fit for a message.
#ifndef TRIREME_INPUT_SHOWN_HPP_
#define TRIREME_INPUT_SHOWN_HPP_

#include <string>

namespace trireme::input {

// At most about 120 bytes of `text`, unprintable ones replaced (a binary file is no deck, and must
// not upset the terminal).
std::string Shown(const std::string& text);

}  // namespace trireme::input

#endif  // TRIREME_INPUT_SHOWN_HPP_
