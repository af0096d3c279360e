// Reading of data.validation.
#include "trireme/data/validation_sets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "deck_list.hpp"
#include "trireme/base/error.hpp"
#include "trireme/deck/list.hpp"
#include "trireme/deck/shown.hpp"

namespace trireme::data {

namespace {

constexpr const char* kValidationKey = "data.validation";
constexpr const char* kForm = "Write data.validation = books:books.h5, code:code.h5.";

bool IsName(std::string_view text) {
  constexpr std::string_view kMarks = "_-.";
  const auto fits = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), fits);
}

}  // namespace

std::vector<ValidationFile> ReadValidation(const std::string& text, const deck::Deck& deck) {
  std::vector<ValidationFile> sets;
  for (const std::string_view entry : DeckList(text, kValidationKey, kForm, deck)) {
    const std::string shown = deck::Shown(std::string(entry));
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      throw deck.Complain(kValidationKey, fmt::format("'{}' has no name", shown), kForm);
    }
    ValidationFile set{std::string(deck::Trimmed(entry.substr(0, colon))),
                       std::string(deck::Trimmed(entry.substr(colon + 1)))};
    if (!IsName(set.name)) {
      throw deck.Complain(kValidationKey,
                          fmt::format("'{}' is no name of letters, digits, '_', '-' and '.'",
                                      deck::Shown(set.name)),
                          kForm);
    }
    if (set.path.empty()) {
      throw deck.Complain(kValidationKey, fmt::format("'{}' names no file", shown), kForm);
    }
    if (std::any_of(sets.begin(), sets.end(),
                    [&](const auto& each) { return each.name == set.name; })) {
      throw deck.Complain(kValidationKey, fmt::format("{} is there twice", set.name),
                          "Give each set a name of its own.");
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

}  // namespace trireme::data
