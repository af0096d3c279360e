// Checks of one value of one key: its kind, its range, its choices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/deck/schema.hpp"

namespace trireme::deck {

// What is wrong with a value, and the remedy; both empty for a good value.
struct Problem {
  std::string message;
  std::string hint;
  explicit operator bool() const { return !message.empty(); }
};

// Checks `text` (without blanks around it) against the key's declaration.
Problem CheckValue(const Key& key, const std::string& text);

// The whole text as a number; nullopt if it is not one or does not fit.
std::optional<std::int64_t> ToInteger(const std::string& text);
std::optional<double> ToReal(const std::string& text);  // finite numbers only

// "at least 1", "above 0 and at most 1", "between 0 and 1"; empty if every number is allowed.
std::string RangeText(const Key& key);

// `text` without leading and trailing blanks, tabs and line ends.
std::string Trim(const std::string& text);

// What Deck::Where() returns for a value from the command line.
inline constexpr const char* kCommandLine = "command line";

// Kind, unit and range: "integer (steps), at least 1".
std::string KindText(const Key& key);
// "The sections are job, run."
std::string SectionsText(const Schema& schema);
// Names of the keys that a key excludes.
std::vector<std::string> ExcludedBy(const Schema& schema, const std::string& name);
// "Excludes schedule.steps."; empty if the key excludes none.
std::string ExcludesText(const Schema& schema, const Key& key);

}  // namespace trireme::deck
