// Deck: reading values, supplying them from elsewhere, and writing the resolved deck.
#include "trireme/deck/deck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "value.hpp"

namespace trireme::deck {

namespace {

// Comments of the resolved deck stand in one column unless a value is longer than this.
constexpr std::size_t kWidestAligned = 40;

}  // namespace

const Deck::Value& Deck::Find(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw std::logic_error("deck key was not declared: " + name);
  return found->second;
}

const std::string& Deck::Find(const std::string& name, KeyKind kind) const {
  const Value& value = Find(name);
  const KeyKind declared = schema_->Find(name)->kind;
  // A choice is a text to the code that reads it.
  const KeyKind readable = declared == KeyKind::kChoice ? KeyKind::kText : declared;
  if (readable != kind) throw std::logic_error("deck key read as another kind: " + name);
  return value.text;
}

// The texts below were checked when they came in, so the conversions cannot fail.
std::int64_t Deck::Integer(const std::string& name) const {
  return ToInteger(Find(name, KeyKind::kInteger)).value();
}

double Deck::Real(const std::string& name) const {
  return ToReal(Find(name, KeyKind::kReal)).value();
}

const std::string& Deck::Text(const std::string& name) const { return Find(name, KeyKind::kText); }

bool Deck::Switch(const std::string& name) const {
  const std::string& text = Find(name, KeyKind::kSwitch);
  return text == "yes" || text == "true" || text == "on";
}

bool Deck::Given(const std::string& name) const { return Find(name).given; }

std::string Deck::Where(const std::string& name) const { return Find(name).where; }

void Deck::Take(const std::string& name, const Value& value) {
  for (const auto& group : schema_->ExclusiveGroups()) {
    if (std::find(group.begin(), group.end(), name) == group.end()) continue;
    for (const std::string& other : group) {
      values_[other] = {schema_->Find(other)->fallback, "default", false, true};
    }
  }
  values_[name] = value;
}

void Deck::Forget(const std::string& name) {
  const Value& value = Find(name);
  if (value.where == kCommandLine) return;
  values_[name] = {schema_->Find(name)->fallback, "default", false, value.dropped};
}

std::vector<std::pair<std::string, std::string>> Deck::Section(const std::string& section) const {
  std::vector<std::pair<std::string, std::string>> values;
  const std::string prefix = section + ".";
  for (const Key& key : schema_->Keys()) {
    if (!key.name.starts_with(prefix) || Find(key.name).dropped) continue;
    values.emplace_back(key.name.substr(prefix.size()), Find(key.name).text);
  }
  return values;
}

void Deck::Supply(const std::string& name, const std::string& value, const std::string& origin) {
  if (Find(name).given) return;
  for (const auto& group : schema_->ExclusiveGroups()) {
    if (std::find(group.begin(), group.end(), name) == group.end()) continue;
    for (const std::string& other : group) {
      if (Find(other).given) return;  // the user chose another key of the group
    }
  }
  const std::string text = Trim(value);
  if (const Problem problem = CheckValue(*schema_->Find(name), text)) {
    throw InputError(fmt::format("{}: {} = {}: {}", origin, name, Shown(text), problem.message),
                     problem.hint);
  }
  Take(name, {text, origin, false, false});
}

trireme::Error Deck::Complain(const std::string& name, const std::string& message,
                              const std::string& hint) const {
  const Value& value = Find(name);
  const std::string deck = path_.empty() ? "deck" : path_;
  const std::string assignment = name + " = " + value.text;
  // A value that no line of the user's holds is named with what chose it.
  const std::string subject = value.given
                                  ? fmt::format("{}: {}", value.where, assignment)
                                  : fmt::format("{}: {} ({})", deck, assignment, value.where);
  return InputError(subject + ": " + message, hint);
}

std::string Deck::Resolved() const {
  std::string out;
  for (const auto& [section, help] : schema_->Sections()) {
    struct Line {
      std::string key;
      const Value* value;
    };
    std::vector<Line> lines;
    std::size_t key_width = 0, value_width = 0;
    for (const Key& key : schema_->Keys()) {
      if (key.name.compare(0, section.size() + 1, section + ".") != 0) continue;
      const Value& value = Find(key.name);
      if (value.dropped) continue;
      lines.push_back({key.name.substr(section.size() + 1), &value});
      key_width = std::max(key_width, lines.back().key.size());
      if (value.text.size() <= kWidestAligned) {
        value_width = std::max(value_width, value.text.size());
      }
    }
    if (lines.empty()) continue;
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const Line& line : lines) {
      const bool chosen = line.value->where != "default";
      const std::string comment = chosen ? "# from " + line.value->where : "";
      std::string text = fmt::format("{:<{}} = {:<{}}  {}", line.key, key_width, line.value->text,
                                     value_width, comment);
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + "\n";
    }
  }
  return out;
}

}  // namespace trireme::deck
