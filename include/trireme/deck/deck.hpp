// An input deck: INI text as Boost.Program_options reads it, checked against a Schema. The command
// line wins over the deck, the deck over supplied values (presets), and those over the defaults.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/deck/schema.hpp"

namespace trireme::deck {

// Text from a user or a file, made fit for a message.

// At most about 120 bytes of `text`, unprintable ones replaced (a binary file is no deck, and must
// not upset the terminal).
std::string Shown(const std::string& text);

// Lists in a deck's values: entries with commas between them.

// Without the blanks, tabs and line ends around it.
std::string_view Trimmed(std::string_view text);

// Entries, trimmed, which point into `text`; at least one, and any may be empty.
std::vector<std::string_view> SplitList(std::string_view text);

class Deck {
 public:
  // Parses `text`, the contents of `path` (used in messages only), and the command line's
  // `overrides` ("section.key=value"). Throws InputError with all problems in one message, each
  // with path:line or "command line": a syntax error, an unknown section or key (with the nearest
  // name), a key given twice, a value of the wrong type, not among its choices or out of range, two
  // keys of an exclusive group in the same place. `schema` must outlive the deck.
  static Deck Parse(const Schema& schema, const std::string& text, const std::string& path,
                    const std::vector<std::string>& overrides);

  // Values by full name, "section.key", for Keys (keys.hpp), which read them into fields. Throw
  // std::logic_error for an undeclared key and for one of another kind.
  std::int64_t Integer(const std::string& name) const;
  double Real(const std::string& name) const;
  const std::string& Text(const std::string& name) const;  // kText and kChoice
  bool Switch(const std::string& name) const;

  // True for a key in the deck or on the command line; false for one that lost to another key of
  // its exclusive group and holds its default.
  bool Given(const std::string& name) const;
  // Origin of a value, for messages: "input/a.in:12", "command line", "preset jsc" or "default".
  std::string Where(const std::string& name) const;
  // Sets a key that was not given to a value from elsewhere (a preset, a resolved automatic
  // choice); no effect on a given key. `origin` goes to Where(). Throws InputError for a value that
  // the schema refuses.
  void Supply(const std::string& name, const std::string& value, const std::string& origin);

  // Takes back what the deck says of a key, which has its default then; no effect on the command
  // line's word.
  void Forget(const std::string& name);

  // Keys of a section (without its name) and their values as text, in the order of declaration;
  // keys that lost to another of their exclusive group are left out.
  std::vector<std::pair<std::string, std::string>> Section(const std::string& section) const;

  // Makes the InputError about one key's value: "input/a.in:12: data.batch = 0: message" and the
  // hint.
  trireme::Error Complain(const std::string& name, const std::string& message,
                          const std::string& hint = {}) const;

  // Prints the resolved deck: every key of every section with its value and, as a comment, its
  // origin, without keys that lost to another of their exclusive group. Parses back to the same
  // values.
  std::string Resolved() const;
  const std::string& Path() const { return path_; }  // of the deck's file

 private:
  struct Value {
    std::string text;   // as the user wrote it
    std::string where;  // "a.in:12", "command line", Supply's origin, or "default"
    bool given = false;
    bool dropped = false;  // lost to another key of its exclusive group
  };
  const Value& Find(const std::string& name) const;
  const std::string& Find(const std::string& name, KeyKind kind) const;
  // Sets a value and drops the other keys of its exclusive group.
  void Take(const std::string& name, const Value& value);

  const Schema* schema_ = nullptr;
  std::string path_;
  std::map<std::string, Value> values_;  // every declared key
};

}  // namespace trireme::deck
