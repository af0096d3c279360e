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

// Range of a number, in the key's unit. It includes its ends unless they are open.
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
  Range range = {};                       // for numbers
  std::string unit = {};                  // empty: none
  std::vector<std::string> choices = {};  // for kChoice; for kSwitch yes, no, true, false, on, off
  // For kText: the value names files or folders. It is then refused if a shell or another INI
  // reader would change it (~, $, a comment after ';').
  bool path = false;
};

class Schema {
 public:
  // Sets a section's one-line description. Sections print in the order of their first mention.
  Schema& Section(const std::string& name, const std::string& help);
  // Declares a key. Throws std::logic_error if it was declared before, or if its own checks refuse
  // its default.
  Schema& Add(Key key);
  // Declares keys that exclude each other: a deck may give at most one, and one on the command line
  // replaces the deck's. If none is given, the first one's default holds. Throws std::logic_error
  // for an undeclared key.
  Schema& Exclusive(const std::vector<std::string>& names);

  const Key* Find(const std::string& name) const;  // nullptr: undeclared
  bool HasSection(const std::string& section) const;
  // Declared names nearest to `name`, joined by "or"; empty if none is near. Compares full names,
  // and names without their sections, by edit distance.
  std::string Nearest(const std::string& name) const;
  // The section nearest to a section's name, as "[model]"; empty if none is near.
  std::string NearestSection(const std::string& section) const;
  // The text of --help-deck. what: a section, a key ("model.dim"), or empty for everything. Throws
  // InputError for an unknown name, with the nearest one.
  std::string Help(const std::string& what) const;

  const std::vector<Key>& Keys() const { return keys_; }
  const std::vector<std::pair<std::string, std::string>>& Sections() const { return sections_; }
  const std::vector<std::vector<std::string>>& ExclusiveGroups() const { return exclusive_; }

 private:
  std::vector<std::pair<std::string, std::string>> sections_;  // name, help
  std::vector<Key> keys_;                                      // in declaration order
  std::vector<std::vector<std::string>> exclusive_;
};

// Content of the manual page besides the keys. The page is made when Trireme is built.
struct ManualFacts {
  std::string version;  // "0.1.0"
  std::string date;     // date of the sources: "2026-11-24"
  std::string help;     // text of --help: a sentence, "usage:", options, "exit codes:"
};

// The page trireme(1) in the macros of man(7), plain ASCII. Throws std::logic_error if the help
// text has another form.
std::string ManualPage(const Schema& schema, const ManualFacts& facts);

}  // namespace trireme::deck
