// An input deck: INI text as Boost.Program_options reads it, checked against a Schema. Values from
// the command line win over the deck's, the deck's over a preset's, a preset's over the defaults.
#ifndef TRIREME_INPUT_DECK_HPP_
#define TRIREME_INPUT_DECK_HPP_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/input/schema.hpp"

namespace trireme::input {

class Deck {
 public:
  // Parses `text` (the contents of `path`, which is used in messages only) and the command line's
  // `overrides` ("section.key=value"). Throws InputError for: a syntax error, an unknown section or
  // key (with the nearest name), a key given twice, a value of the wrong type, not in its choices
  // or out of range, two keys of an exclusive group in the same place; each with path:line or
  // "command line", and all problems of the deck in one message. `schema` must outlive the deck.
  static Deck Parse(const Schema& schema, const std::string& text, const std::string& path,
                    const std::vector<std::string>& overrides);

  std::int64_t Integer(const std::string& name) const;
  double Real(const std::string& name) const;
  const std::string& Text(const std::string& name) const;  // kText and kChoice
  bool Switch(const std::string& name) const;

  // In the deck or on the command line; false for a key that lost to another of its exclusive group
  // (it then holds its default).
  bool Given(const std::string& name) const;
  // "input/a.in:12", "command line", "preset jsc" or "default": for messages.
  std::string Where(const std::string& name) const;
  // Gives a key that the user did not give a value from elsewhere (a preset, a resolved automatic
  // choice); no effect on a given key. `origin` goes to Where(). The value is checked like any
  // other.
  void Supply(const std::string& name, const std::string& value, const std::string& origin);

  // An InputError about one key's value: "input/a.in:12: data.batch = 0: message" and the hint.
  trireme::Error Complain(const std::string& name, const std::string& message,
                          const std::string& hint = {}) const;

  // The resolved deck: every key of every section with its value and, as a comment, where it came
  // from; keys of an exclusive group that lost are left out. Parses back to the same values.
  std::string Resolved() const;
  const std::string& Path() const { return path_; }

 private:
  struct Value {
    std::string text;   // as the user wrote it
    std::string where;  // "a.in:12", "command line", the origin of Supply, or "default"
    bool given = false;
    bool dropped = false;  // lost to another key of its exclusive group
  };
  const Value& Find(const std::string& name) const;
  const std::string& Find(const std::string& name, KeyKind kind) const;
  void Take(const std::string& name, const Value& value);  // and drops the rest of its group

  const Schema* schema_ = nullptr;
  std::string path_;
  std::map<std::string, Value> values_;  // every declared key
};

}  // namespace trireme::input

#endif  // TRIREME_INPUT_DECK_HPP_
