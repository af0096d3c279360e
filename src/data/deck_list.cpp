// Cutting of a deck's lists of files.
#include "deck_list.hpp"

#include "trireme/base/error.hpp"
#include "trireme/deck/list.hpp"

namespace trireme::data {

std::vector<std::string_view> DeckList(std::string_view text, const char* key, const char* forms,
                                       const deck::Deck& deck) {
  std::vector<std::string_view> entries = deck::SplitList(text);
  for (const std::string_view entry : entries) {
    if (entry.empty()) throw deck.Complain(key, "an entry of the list is empty", forms);
  }
  return entries;
}

}  // namespace trireme::data
