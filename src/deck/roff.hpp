// Text for roff, the language of manual pages.
#ifndef TRIREME_SRC_DECK_ROFF_HPP_
#define TRIREME_SRC_DECK_ROFF_HPP_

#include <string>

namespace trireme::deck::roff {

// Forms of '-': a minus, as in options and numbers, that can be copied to a shell; or that, but
// between two letters a hyphen.
enum class Hyphen { kMinus, kInWords };

// `text`, in UTF-8, such that roff prints it as it is; plain ASCII. At the beginning of a line a
// dot or a quotation mark would still be a request.
std::string Escaped(const std::string& text, Hyphen hyphen);
// The escaped text as a line of its own, in bold.
std::string Bold(const std::string& text);
// The words of `text` in lines of at most 78 columns, a new one for each sentence; empty for none.
std::string Prose(const std::string& text);

}  // namespace trireme::deck::roff

#endif  // TRIREME_SRC_DECK_ROFF_HPP_
