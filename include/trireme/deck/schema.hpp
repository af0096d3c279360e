// Declarations of the keys that a deck may hold. Each folder declares its own in options.cpp,
// through Keys (keys.hpp), which bind them to fields.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace trireme::deck {

enum class KeyKind { kInteger, kReal, kText, kChoice, kSwitch };

// Range of a number, in the key's unit; closed unless an end is open.
struct Range {
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool open_minimum = false;  // true: the value must lie above `minimum`
  bool open_maximum = false;  // true: the value must lie below `maximum`
};
constexpr Range AtLeast(double minimum) { return {minimum}; }
constexpr Range Above(double minimum) {
  return {minimum, std::numeric_limits<double>::infinity(), true, false};
}
constexpr Range Between(double minimum, double maximum) { return {minimum, maximum}; }
constexpr Range HalfOpen(double minimum, double maximum) { return {minimum, maximum, false, true}; }

// One declared key.
struct Key {
  std::string name;  // "section.name"
  KeyKind kind = KeyKind::kText;
  std::string fallback = {};              // default value as a user would write it; may be empty
  std::string help = {};                  // one or more sentences, for --help-deck
  Range range = {};                       // of numbers
  std::string unit = {};                  // "": none
  std::vector<std::string> choices = {};  // kChoice; kSwitch has yes, no, true, false, on, off
  // kText: names files or folders. A value that a shell or another INI reader would change (~, $, a
  // comment after ';') is refused.
  bool path = false;
};

class Schema {
 public:
  // Adds a section's one-line description; sections print in the order of their first mention.
  Schema& Section(const std::string& name, const std::string& help);
  // Declares a key. Throws std::logic_error for a key declared twice and for a default that its own
  // checks refuse.
  Schema& Add(Key key);
  // Declares keys of which a deck may give at most one; one on the command line replaces the
  // deck's. Without any, the first one's default stands. Throws std::logic_error for an undeclared
  // key.
  Schema& Exclusive(const std::vector<std::string>& names);

  const Key* Find(const std::string& name) const;  // nullptr: undeclared
  bool HasSection(const std::string& section) const;
  // Declared names nearest to `name` (edit distance; whole name and name without section), joined
  // by "or"; empty if none is near.
  std::string Nearest(const std::string& name) const;
  // Nearest section to a section's name: "[model]".
  std::string NearestSection(const std::string& section) const;
  // Text of --help-deck: every key of a section, one key ("model.dim"), or all if `what` is empty.
  // Throws InputError for what does not exist, naming the nearest.
  std::string Help(const std::string& what) const;

  const std::vector<Key>& Keys() const { return keys_; }
  const std::vector<std::pair<std::string, std::string>>& Sections() const { return sections_; }
  const std::vector<std::vector<std::string>>& ExclusiveGroups() const { return exclusive_; }

 private:
  std::vector<std::pair<std::string, std::string>> sections_;  // name, help
  std::vector<Key> keys_;                                      // in declaration order
  std::vector<std::vector<std::string>> exclusive_;
};

// The manual page: made from the declarations of the keys and the text of --help when Trireme is
// built.

// Content of the page besides the keys.
struct ManualFacts {
  std::string version;  // "0.1.0"
  std::string date;     // of the sources: "2026-11-24"
  std::string help;     // text of --help: a sentence, "usage:", options, "exit codes:"
};

// The page trireme(1), in the macros of man(7), plain ASCII. Throws std::logic_error for a help
// text of another form.
std::string ManualPage(const Schema& schema, const ManualFacts& facts);

}  // namespace trireme::deck
