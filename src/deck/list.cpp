// Cutting of lists.
#include "trireme/deck/list.hpp"

namespace trireme::deck {

std::string_view Trimmed(std::string_view text) {
  constexpr const char* kBlanks = " \t";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> entries;
  while (true) {
    const std::size_t comma = text.find(',');
    entries.push_back(Trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return entries;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace trireme::deck
