// Choice keys and enums: the order of a key's choices is the order of its enum's values.
#ifndef TRIREME_DECK_CHOICE_HPP_
#define TRIREME_DECK_CHOICE_HPP_

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::deck {

// Names of all values of an enum, in the enum's order.
template <std::size_t N>
using Names = std::array<const char*, N>;

// The choices of a key, for Schema::Choice.
template <std::size_t N>
std::vector<std::string> Choices(const Names<N>& names) {
  return {names.begin(), names.end()};
}

// The value whose name is `text`. Throws RunError for a name that is not in the list: the schema
// lets none through.
template <typename Enum, std::size_t N>
Enum Pick(const std::string& text, const Names<N>& names) {
  for (std::size_t i = 0; i < N; ++i) {
    if (text == names[i]) return static_cast<Enum>(i);
  }
  throw RunError("choice '" + text + "' has no value: a bug in Trireme");
}

}  // namespace trireme::deck

#endif  // TRIREME_DECK_CHOICE_HPP_
