// Cutting of a deck's lists.
#include "deck_list.hpp"

#include "trireme/base/error.hpp"

namespace trireme::data {

std::string_view Trimmed(std::string_view text) {
  constexpr const char* kBlanks = " \t";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<std::string_view> DeckList(std::string_view text, const char* key, const char* forms,
                                       const input::Deck& deck) {
  std::vector<std::string_view> entries;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    entries.push_back(Trimmed(text.substr(0, comma)));
    if (entries.back().empty()) throw deck.Complain(key, "an entry of the list is empty", forms);
    if (more) text.remove_prefix(comma + 1);
  }
  return entries;
}

}  // namespace trireme::data
