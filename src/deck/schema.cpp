// Schema: collects the declarations of all modules. A faulty declaration is a bug in Trireme, not
// in a deck, and throws std::logic_error at start.
#include "trireme/deck/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "value.hpp"

namespace trireme::deck {

namespace {

Key MakeKey(const std::string& name, KeyKind kind, const std::string& fallback,
            const std::string& help) {
  Key key;
  key.name = name;
  key.kind = kind;
  key.fallback = fallback;
  key.help = help;
  return key;
}

Key MakeNumber(const std::string& name, KeyKind kind, const std::string& fallback, Range range,
               const std::string& unit, const std::string& help) {
  Key key = MakeKey(name, kind, fallback, help);
  key.minimum = range.minimum;
  key.maximum = range.maximum;
  key.open_minimum = range.open_minimum;
  key.open_maximum = range.open_maximum;
  key.unit = unit;
  return key;
}

}  // namespace

Schema& Schema::Section(const std::string& name, const std::string& help) {
  for (auto& [known, known_help] : sections_) {
    if (known != name) continue;
    if (!help.empty()) known_help = help;
    return *this;
  }
  sections_.emplace_back(name, help);
  return *this;
}

Schema& Schema::Integer(const std::string& name, std::int64_t fallback, Range range,
                        const std::string& unit, const std::string& help) {
  return Add(MakeNumber(name, KeyKind::kInteger, fmt::to_string(fallback), range, unit, help));
}

Schema& Schema::Real(const std::string& name, double fallback, Range range, const std::string& unit,
                     const std::string& help) {
  return Add(MakeNumber(name, KeyKind::kReal, fmt::format("{}", fallback), range, unit, help));
}

Schema& Schema::Text(const std::string& name, const std::string& fallback,
                     const std::string& help) {
  return Add(MakeKey(name, KeyKind::kText, fallback, help));
}

Schema& Schema::Path(const std::string& name, const std::string& fallback,
                     const std::string& help) {
  Key key = MakeKey(name, KeyKind::kText, fallback, help);
  key.path = true;
  return Add(std::move(key));
}

Schema& Schema::Choice(const std::string& name, const std::string& fallback,
                       const std::vector<std::string>& choices, const std::string& help) {
  Key key = MakeKey(name, KeyKind::kChoice, fallback, help);
  key.choices = choices;
  return Add(std::move(key));
}

Schema& Schema::Switch(const std::string& name, bool fallback, const std::string& help) {
  Key key = MakeKey(name, KeyKind::kSwitch, fallback ? "yes" : "no", help);
  key.choices = {"yes", "no", "true", "false", "on", "off"};
  return Add(std::move(key));
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

}  // namespace trireme::deck
