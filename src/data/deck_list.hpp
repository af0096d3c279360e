// Lists in a deck's values without empty entries.
#ifndef TRIREME_SRC_DATA_DECK_LIST_HPP_
#define TRIREME_SRC_DATA_DECK_LIST_HPP_

#include <string>
#include <string_view>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::data {

// Entries of the value `text` of `key`, trimmed, which point into it. Throws InputError with the
// deck's line and the hint `forms` for an empty entry.
std::vector<std::string_view> DeckList(std::string_view text, const char* key, const char* forms,
                                       const deck::Deck& deck);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_DECK_LIST_HPP_
