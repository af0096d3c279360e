// Text from a user or a file, made fit for a message.
#ifndef TRIREME_DECK_SHOWN_HPP_
#define TRIREME_DECK_SHOWN_HPP_

#include <string>

namespace trireme::deck {

// At most about 120 bytes of `text`, unprintable ones replaced (a binary file is no deck, and must
// not upset the terminal).
std::string Shown(const std::string& text);

}  // namespace trireme::deck

#endif  // TRIREME_DECK_SHOWN_HPP_
