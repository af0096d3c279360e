// Schema::Help: the text of --help-deck. A section is its name and description, then for every key
//   name = default      kind (unit), range
//                       what it means, wrapped
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <sstream>

#include "help_words.hpp"
#include "trireme/base/error.hpp"
#include "trireme/deck/schema.hpp"
#include "value.hpp"

namespace trireme::deck {

namespace {

constexpr std::size_t kColumns = 100;    // width of the printed page
constexpr std::size_t kWidestName = 36;  // a longer "name = default" takes a line of its own
constexpr std::size_t kIndent = 2;       // of keys below their section

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
  // The first line of the right column shares the line of a name that leaves it room.
  if (left.size() + 2 <= margin) {
    out += left + right.substr(left.size());
  } else {
    out += left + "\n" + right;
  }
}

// only: one key's full name; empty: all of the section.
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
  std::string text;
  switch (key.kind) {
    case KeyKind::kInteger:
      text = "integer";
      break;
    case KeyKind::kReal:
      text = "real";
      break;
    case KeyKind::kText:
      text = "text";
      break;
    case KeyKind::kChoice:
      text = fmt::format("one of {}", fmt::join(key.choices, ", "));
      break;
    case KeyKind::kSwitch:
      text = "yes or no";
      break;
  }
  if (!key.unit.empty()) text += " (" + key.unit + ")";
  const std::string range = RangeText(key);
  return range.empty() ? text : text + ", " + range;
}

std::string ExcludesText(const Schema& schema, const Key& key) {
  std::string text;
  for (const auto& group : schema.ExclusiveGroups()) {
    if (std::find(group.begin(), group.end(), key.name) == group.end()) continue;
    std::vector<std::string> others;
    std::copy_if(group.begin(), group.end(), std::back_inserter(others),
                 [&](const std::string& name) { return name != key.name; });
    text += fmt::format("{}Excludes {}.", text.empty() ? "" : " ", fmt::join(others, ", "));
  }
  return text;
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
    std::vector<std::string> names;
    for (const auto& [name, help] : sections_) names.push_back(name);
    throw InputError(fmt::format("--help-deck: there is no section [{}]", section),
                     nearest.empty() ? fmt::format("The sections are {}.", fmt::join(names, ", "))
                                     : "Did you mean " + nearest + "?");
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
