// An input deck: INI text, read by Boost.Program_options and checked against a Schema. The command
// line overrides the deck, the deck overrides supplied values (presets), and these override
// defaults.
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

// `text` made fit for a message: cut to about 120 bytes, and control characters of ASCII replaced
// by '?' (a binary file given as a deck must not upset the terminal).
std::string Shown(const std::string& text);

// `text` without the blanks, tabs and line ends around it.
std::string_view Trimmed(std::string_view text);

// Splits a list at its commas. The trimmed entries point into `text`; there is at least one, and
// any may be empty.
std::vector<std::string_view> SplitList(std::string_view text);

class Deck {
 public:
  // Parses `text`, the contents of `path` (used in messages only), and the command line's
  // `overrides` ("section.key=value"). `schema` must outlive the deck. Throws one InputError with
  // all problems, each with path:line or "command line": a syntax error, an unknown section or key
  // (with the nearest name), a key given twice, a value of the wrong type, out of range or not
  // among the choices, two keys of an exclusive group in the same place.
  static Deck Parse(const Schema& schema, const std::string& text, const std::string& path,
                    const std::vector<std::string>& overrides);

  // Values by full name, "section.key"; Keys (keys.hpp) reads them into fields. They throw
  // std::logic_error for an undeclared key and for a key of another kind.
  std::int64_t Integer(const std::string& name) const;
  double Real(const std::string& name) const;
  const std::string& Text(const std::string& name) const;  // kText and kChoice
  bool Switch(const std::string& name) const;

  // Whether the deck or the command line gives the key. False if it lost to another key of its
  // exclusive group: it then has its default.
  bool Given(const std::string& name) const;
  // Whether the deck or the command line gives the key another value than its default. A resolved
  // deck gives every key, so checks that refuse a key without effect ask this.
  bool Differs(const std::string& name) const;
  // Throws Complain(name, what, advice) if the key has no effect (unused), but Differs.
  void RefuseUnused(bool unused, const std::string& name, const std::string& what,
                    const std::string& advice) const;
  // Origin of a value, for messages: "input/a.in:12", "command line", "preset jsc" or "default".
  std::string Where(const std::string& name) const;
  // Sets a key to a value from elsewhere (a preset, an automatic choice), unless the key or another
  // of its exclusive group was given. origin: what Where() then returns. Throws InputError if the
  // schema refuses the value.
  void Supply(const std::string& name, const std::string& value, const std::string& origin);

  // Undoes what the deck says about a key, which then has its default; no effect on a value from
  // the command line.
  void Forget(const std::string& name);

  // Keys of a section (without its name) and their values as text, in the order of declaration.
  // Leaves out keys that lost to another of their exclusive group.
  std::vector<std::pair<std::string, std::string>> Section(const std::string& section) const;

  // Makes the InputError about a key's value, with the hint: "input/a.in:12: data.batch = 0:
  // message".
  trireme::Error Complain(const std::string& name, const std::string& message,
                          const std::string& hint = {}) const;

  // The resolved deck as text: every key of every section with its value, and with its origin as a
  // comment unless it has its default. Leaves out keys that lost to another of their exclusive
  // group. The text parses to the same values.
  std::string Resolved() const;
  const std::string& Path() const { return path_; }  // the deck's file

 private:
  struct Value {
    std::string text;   // as the user wrote it
    std::string where;  // "a.in:12", "command line", Supply's origin, or "default"
    bool given = false;
    bool dropped = false;  // lost to another key of its exclusive group
  };
  const Value& Find(const std::string& name) const;
  const std::string& Find(const std::string& name, KeyKind kind) const;
  // Sets a value, and drops the other keys of its exclusive group.
  void Take(const std::string& name, const Value& value);

  const Schema* schema_ = nullptr;
  std::string path_;
  std::map<std::string, Value> values_;  // every declared key
};

}  // namespace trireme::deck
