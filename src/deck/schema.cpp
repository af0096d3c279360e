// Schema: collects the declarations of all modules. A faulty declaration is a bug in Trireme and
// not in a deck, so it throws std::logic_error at start.
#include "trireme/deck/schema.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <sstream>
#include <stdexcept>

#include "trireme/base/error.hpp"
#include "trireme/deck/keys.hpp"
#include "value.hpp"

namespace trireme::deck {

Schema& Schema::Section(const std::string& name, const std::string& help) {
  for (auto& [known, known_help] : sections_) {
    if (known != name) continue;
    if (!help.empty()) known_help = help;
    return *this;
  }
  sections_.emplace_back(name, help);
  return *this;
}

Schema& Schema::Exclusive(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (Find(name) == nullptr) {
      throw std::logic_error("exclusive group names an undeclared deck key: " + name);
    }
  }
  exclusive_.push_back(names);
  return *this;
}

Schema& Schema::Add(Key key) {
  const std::size_t dot = key.name.find('.');
  if (dot == 0 || dot == std::string::npos || dot + 1 == key.name.size()) {
    throw std::logic_error("a deck key is named section.key, not '" + key.name + "'");
  }
  if (Find(key.name) != nullptr) throw std::logic_error("deck key declared twice: " + key.name);
  if (const Problem problem = CheckValue(key, key.fallback)) {
    throw std::logic_error(fmt::format("deck key {}: its own default {} is refused: {}", key.name,
                                       key.fallback, problem.message));
  }
  Section(key.name.substr(0, dot), "");
  keys_.push_back(std::move(key));
  return *this;
}

const Key* Schema::Find(const std::string& name) const {
  const auto found =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) { return key.name == name; });
  return found == keys_.end() ? nullptr : &*found;
}

bool Schema::HasSection(const std::string& section) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const auto& known) { return known.first == section; });
}

Keys& Keys::Section(const std::string& name, const std::string& help) {
  if (schema_ != nullptr) schema_->Section(name, help);
  return *this;
}

Keys& Keys::Exclusive(const std::vector<std::string>& names) {
  if (schema_ != nullptr) schema_->Exclusive(names);
  return *this;
}

Keys& Keys::Integer(const std::string& name, std::int64_t& field, Range range,
                    const std::string& unit, const std::string& help) {
  if (deck_ != nullptr) field = deck_->Integer(name);
  return Add({name, KeyKind::kInteger, fmt::to_string(field), help, range, unit});
}

Keys& Keys::Real(const std::string& name, double& field, Range range, const Unit& unit,
                 const std::string& help) {
  if (deck_ != nullptr) field = deck_->Real(name) * unit.scale;
  const std::string value = fmt::format("{}", field / unit.scale);
  return Add({name, KeyKind::kReal, value, help, range, unit.name});
}

Keys& Keys::Text(const std::string& name, std::string& field, const std::string& help) {
  if (deck_ != nullptr) field = deck_->Text(name);
  return Add({name, KeyKind::kText, field, help});
}

Keys& Keys::Path(const std::string& name, std::string& field, const std::string& help) {
  if (deck_ != nullptr) field = deck_->Text(name);
  return Add({.name = name, .fallback = field, .help = help, .path = true});
}

Keys& Keys::Choice(const std::string& name, std::string& field,
                   const std::vector<std::string>& choices, const std::string& help) {
  if (deck_ != nullptr) field = deck_->Text(name);
  return Add({name, KeyKind::kChoice, field, help, {}, "", choices});
}

Keys& Keys::Switch(const std::string& name, bool& field, const std::string& help) {
  const std::vector<std::string> answers = {"yes", "no", "true", "false", "on", "off"};
  if (deck_ != nullptr) field = deck_->Switch(name);
  return Add({name, KeyKind::kSwitch, field ? "yes" : "no", help, {}, "", answers});
}

Keys& Keys::Add(const Key& key) {
  if (schema_ != nullptr) schema_->Add(key);
  return *this;
}

// Schema::Help: the text of --help-deck. A section is its name and description, then for every key
//   name = default      kind (unit), range
//                       what it means, wrapped

namespace {

constexpr std::size_t kColumns = 100;    // width of the printed page
constexpr std::size_t kWidestName = 36;  // a longer "name = default" gets a line of its own
constexpr std::size_t kIndent = 2;       // blanks before a key

// Appends `text`, broken between words, with every line indented by `margin` blanks.
void Wrap(const std::string& text, std::size_t margin, std::string& out) {
  std::istringstream words(text);
  std::string line, word;
  const auto flush = [&] {
    if (!line.empty()) out += std::string(margin, ' ') + line + "\n";
    line.clear();
  };
  while (words >> word) {
    if (!line.empty() && margin + line.size() + 1 + word.size() > kColumns) flush();
    line += (line.empty() ? "" : " ") + word;
  }
  flush();
}

std::string KeyAndDefault(const Key& key, std::size_t section_length) {
  const std::string own = key.name.substr(section_length + 1);
  return key.fallback.empty() ? own + " =" : own + " = " + key.fallback;
}

void HelpForKey(const Schema& schema, const Key& key, const std::string& assignment,
                std::size_t margin, std::string& out) {
  std::string right;
  Wrap(KindText(key), margin, right);
  Wrap(key.help, margin, right);
  Wrap(ExcludesText(schema, key), margin, right);
  const std::string left = std::string(kIndent, ' ') + assignment;
  // The first line of the right column shares the line of a name that is short enough.
  if (left.size() + 2 <= margin) {
    out += left + right.substr(left.size());
  } else {
    out += left + "\n" + right;
  }
}

// only: full name of the one key to print; empty: all keys of the section.
std::string HelpForSection(const Schema& schema, const std::string& section,
                           const std::string& help, const std::string& only) {
  std::vector<const Key*> keys;
  std::size_t widest = 0;
  for (const Key& key : schema.Keys()) {
    if (key.name.compare(0, section.size() + 1, section + ".") != 0) continue;
    if (!only.empty() && key.name != only) continue;
    keys.push_back(&key);
    const std::size_t width = KeyAndDefault(key, section.size()).size();
    if (width <= kWidestName) widest = std::max(widest, width);
  }
  const std::size_t margin = kIndent + widest + 2;
  std::string out = "[" + section + "]\n";
  if (only.empty()) Wrap(help, 0, out);
  for (const Key* key : keys) {
    if (only.empty()) out += "\n";
    HelpForKey(schema, *key, KeyAndDefault(*key, section.size()), margin, out);
  }
  return out;
}

}  // namespace

std::string KindText(const Key& key) {
  constexpr std::array kNames = {"integer", "real", "text", "", "yes or no"};  // by KeyKind
  std::string text = key.kind == KeyKind::kChoice
                         ? fmt::format("one of {}", fmt::join(key.choices, ", "))
                         : kNames.at(static_cast<std::size_t>(key.kind));
  if (!key.unit.empty()) text += " (" + key.unit + ")";
  const std::string range = RangeText(key);
  return range.empty() ? text : text + ", " + range;
}

std::string SectionsText(const Schema& schema) {
  std::vector<std::string> names;
  for (const auto& [name, help] : schema.Sections()) names.push_back(name);
  return fmt::format("The sections are {}.", fmt::join(names, ", "));
}

std::vector<std::string> ExcludedBy(const Schema& schema, const std::string& name) {
  std::vector<std::string> others;
  for (const auto& group : schema.ExclusiveGroups()) {
    if (std::ranges::find(group, name) == group.end()) continue;
    others.insert(others.end(), group.begin(), group.end());
  }
  std::erase(others, name);
  return others;
}

std::string ExcludesText(const Schema& schema, const Key& key) {
  const std::vector<std::string> others = ExcludedBy(schema, key.name);
  return others.empty() ? "" : fmt::format("Excludes {}.", fmt::join(others, ", "));
}

std::string Schema::Help(const std::string& what) const {
  const std::string section = what.substr(0, what.find('.'));
  const std::string only = section == what ? "" : what;
  if (!only.empty() && Find(only) == nullptr) {
    const std::string nearest = Nearest(only);
    throw InputError(
        fmt::format("--help-deck: there is no key {}", only),
        nearest.empty() ? "trireme --help-deck lists all keys." : "Did you mean " + nearest + "?");
  }
  if (!section.empty() && !HasSection(section)) {
    const std::string nearest = NearestSection(section);
    throw InputError(fmt::format("--help-deck: there is no section [{}]", section),
                     nearest.empty() ? SectionsText(*this) : "Did you mean " + nearest + "?");
  }
  std::string out;
  for (const auto& [name, help] : sections_) {
    if (!section.empty() && name != section) continue;
    if (!out.empty()) out += "\n";
    out += HelpForSection(*this, name, help, only);
  }
  return out;
}

}  // namespace trireme::deck
