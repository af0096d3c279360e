// Lists in a deck's values: entries with commas between them.
#ifndef TRIREME_DECK_LIST_HPP_
#define TRIREME_DECK_LIST_HPP_

#include <string_view>
#include <vector>

namespace trireme::deck {

// Without the blanks around it.
std::string_view Trimmed(std::string_view text);

// Entries, trimmed, which point into `text`; at least one, and any may be empty.
std::vector<std::string_view> SplitList(std::string_view text);

}  // namespace trireme::deck

#endif  // TRIREME_DECK_LIST_HPP_
