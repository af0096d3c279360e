// Deck::Parse: the deck's lines and the command line's overrides become values, or one message with
// every problem in the order of the lines.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deck_lines.hpp"
#include "trireme/deck/deck.hpp"
#include "value.hpp"

namespace trireme::deck {

namespace {

// More problems than these are counted, not printed.
constexpr std::size_t kMaximumPrinted = 30;

// A value that stands somewhere: `line` counts from 1, in the deck or among the overrides.
struct Given {
  std::string name;  // "section.key"
  std::string text;
  int line = 0;
};

// The deck or the command line, with the problems found in it.
class Source {
 public:
  Source(const Schema& schema, std::string path) : schema_(schema), path_(std::move(path)) {}

  std::string Where(int line) const {
    return path_.empty() ? kCommandLine : fmt::format("{}:{}", path_, line);
  }

  void Report(int line, const std::string& message, const std::string& hint = {}) {
    const std::string text = hint.empty() ? message : message + "\n  " + hint;
    problems_.emplace(line, fmt::format("{}: {}", Where(line), text));
  }

  // Checks one value; keeps it when it is good and the first of its key.
  void Add(const Given& given) {
    const Key* const key = schema_.Find(given.name);
    const auto [first, is_first] = lines_.emplace(given.name, given.line);
    if (!is_first) {
      Report(given.line,
             path_.empty()
                 ? given.name + " is given twice"
                 : fmt::format("{} is given already on line {}", given.name, first->second),
             "Keep one of the two.");
    }
    if (const Problem problem = CheckValue(*key, given.text)) {
      Report(given.line, fmt::format("{} = {}: {}", given.name, Shown(given.text), problem.message),
             problem.hint);
    } else if (is_first) {
      values_.push_back(given);
    }
  }

  // Two keys of an exclusive group in one place: nobody can tell which was meant.
  void CheckExclusive() {
    for (const auto& group : schema_.ExclusiveGroups()) {
      std::vector<std::pair<int, std::string>> present;
      for (const std::string& name : group) {
        if (const auto found = lines_.find(name); found != lines_.end()) {
          present.emplace_back(found->second, name);
        }
      }
      std::sort(present.begin(), present.end());
      for (std::size_t i = 1; i < present.size(); ++i) {
        const std::string place =
            path_.empty() ? "also given" : fmt::format("given on line {}", present[0].first);
        Report(present[i].first,
               fmt::format("{} excludes {}, {}", present[i].second, present[0].second, place),
               "Keep one of the two.");
      }
    }
  }

  const std::vector<Given>& Values() const { return values_; }
  const std::multimap<int, std::string>& Problems() const { return problems_; }

 private:
  const Schema& schema_;
  std::string path_;                          // empty for the command line
  std::vector<Given> values_;                 // good ones, in order
  std::map<std::string, int> lines_;          // of the first mention of each declared key
  std::multimap<int, std::string> problems_;  // by line
};

// "data.batch" and "model.batch" -> where an unknown key might belong, or which keys there are.
std::string HintForKey(const Schema& schema, const std::string& section, const std::string& key) {
  std::vector<std::string> homes;
  for (const auto& [name, help] : schema.Sections()) {
    if (schema.Find(name + "." + key) != nullptr) homes.push_back("[" + name + "]");
  }
  if (!homes.empty()) return fmt::format("'{}' is a key of {}.", key, fmt::join(homes, ", "));
  const std::string nearest = schema.Nearest(section.empty() ? key : section + "." + key);
  if (!nearest.empty()) return "Did you mean " + nearest + "?";
  if (section.empty()) return "Write it below the [section] that it belongs to.";
  return "trireme --help-deck " + section + " lists the keys of [" + section + "].";
}

std::string HintForSection(const Schema& schema, const std::string& section) {
  const std::string nearest = schema.NearestSection(section);
  if (!nearest.empty()) return "Did you mean " + nearest + "? Its keys were not read.";
  std::vector<std::string> names;
  for (const auto& [name, help] : schema.Sections()) names.push_back(name);
  return fmt::format("The sections are {}.", fmt::join(names, ", "));
}

void AddDeckLine(const Schema& schema, const Assignment& line, Source& deck) {
  if (line.key.empty()) {
    deck.Report(line.line, "there is no key before the '='");
    return;
  }
  if (line.key.find("\xC2\xA0") != std::string::npos) {
    deck.Report(line.line, "the line holds a no-break space before the '='",
                "Type it anew, with plain blanks.");
    return;
  }
  if (line.section.empty()) {
    const Key* const key = schema.Find(line.key);
    const std::size_t dot = line.key.find('.');
    deck.Report(line.line, fmt::format("the key '{}' stands outside a section", Shown(line.key)),
                key == nullptr ? HintForKey(schema, "", line.key)
                               : fmt::format("Write '{}' below [{}].", line.key.substr(dot + 1),
                                             line.key.substr(0, dot)));
    return;
  }
  const std::string name = line.section + "." + line.key;
  const Key* const key = schema.Find(name);
  if (key == nullptr) {
    deck.Report(line.line, fmt::format("unknown key '{}' in [{}]", Shown(line.key), line.section),
                HintForKey(schema, line.section, line.key));
    return;
  }
  if (key->kind == KeyKind::kText && line.glued_comment) {
    deck.Report(line.line,
                fmt::format("{}: the '#' begins a comment, which would leave the value '{}'", name,
                            Shown(line.value)),
                "Put a blank before the comment, or choose a name without '#'.");
    return;
  }
  deck.Add({name, line.value, line.line});
}

// Text of two bytes a character, or no text at all: no line of it can be read.
bool IsText(const std::string& text, Source& deck) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    deck.Report(1, "the deck is UTF-16", "Save it as UTF-8, or: iconv -f UTF-16 -t UTF-8.");
    return false;
  }
  const std::size_t zero = text.find('\0');
  if (zero == std::string::npos) return true;
  const auto line =
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(zero), '\n');
  deck.Report(static_cast<int>(line) + 1, "the deck holds NUL bytes: it is UTF-16, or no text",
              "Save it as UTF-8.");
  return false;
}

void ReadDeck(const Schema& schema, const std::string& text, Source& deck) {
  if (!IsText(text, deck)) return;
  const DeckLines lines = ReadLines(text);
  for (const SyntaxError& error : lines.errors) {
    const bool other_comment = error.text.starts_with(';') || error.text.starts_with("//");
    deck.Report(error.line,
                fmt::format("'{}' is neither 'key = value' nor '[section]'", Shown(error.text)),
                other_comment ? "Comments begin with '#'." : "");
  }
  for (const SectionLine& section : lines.sections) {
    if (schema.HasSection(section.name)) continue;
    deck.Report(section.line, fmt::format("unknown section [{}]", Shown(section.name)),
                HintForSection(schema, section.name));
  }
  std::optional<int> first_section;
  if (!lines.sections.empty()) first_section = lines.sections.front().line;
  for (const Assignment& line : lines.assignments) {
    // The keys of an unknown section are not looked at: the section's own message says so.
    const bool outside = !first_section || line.line < *first_section;
    if (outside || schema.HasSection(line.section)) AddDeckLine(schema, line, deck);
  }
  deck.CheckExclusive();
}

void ReadOverrides(const Schema& schema, const std::vector<std::string>& overrides,
                   Source& command_line) {
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    const int line = static_cast<int>(i) + 1;
    const std::size_t equals = overrides[i].find('=');
    const std::string name = Trim(overrides[i].substr(0, equals));
    const std::size_t dot = name.find('.');
    if (equals == std::string::npos || name.empty()) {
      command_line.Report(line, fmt::format("'{}' is not section.key=value", Shown(overrides[i])));
    } else if (dot == std::string::npos) {
      command_line.Report(line,
                          fmt::format("'{}' lacks a section: write section.key=value", Shown(name)),
                          HintForKey(schema, "", name));
    } else if (const std::string section = name.substr(0, dot); !schema.HasSection(section)) {
      const std::string nearest = schema.Nearest(name);
      command_line.Report(
          line, fmt::format("unknown section [{}] in '{}'", Shown(section), Shown(name)),
          nearest.empty() ? HintForSection(schema, section) : "Did you mean " + nearest + "?");
    } else if (schema.Find(name) == nullptr) {
      command_line.Report(line, fmt::format("unknown key '{}'", Shown(name)),
                          HintForKey(schema, section, name.substr(dot + 1)));
    } else {
      command_line.Add({name, Trim(overrides[i].substr(equals + 1)), line});
    }
  }
  command_line.CheckExclusive();
}

void ThrowProblems(const std::string& path, const Source& deck, const Source& command_line) {
  std::vector<std::string> problems;
  for (const auto& [line, text] : deck.Problems()) problems.push_back(text);
  for (const auto& [line, text] : command_line.Problems()) problems.push_back(text);
  if (problems.empty()) return;
  if (problems.size() == 1) throw InputError(problems.front());
  std::string message = fmt::format("{}: {} problems", path, problems.size());
  for (std::size_t i = 0; i < std::min(problems.size(), kMaximumPrinted); ++i) {
    message += "\n" + problems[i];
  }
  if (problems.size() > kMaximumPrinted) {
    message += fmt::format("\nand {} more", problems.size() - kMaximumPrinted);
  }
  throw InputError(message);
}

}  // namespace

Deck Deck::Parse(const Schema& schema, const std::string& text, const std::string& path,
                 const std::vector<std::string>& overrides) {
  Source in_deck(schema, path.empty() ? "deck" : path);
  Source on_command_line(schema, "");
  ReadDeck(schema, text, in_deck);
  ReadOverrides(schema, overrides, on_command_line);
  ThrowProblems(path.empty() ? "deck" : path, in_deck, on_command_line);

  Deck deck;
  deck.schema_ = &schema;
  deck.path_ = path;
  for (const Key& key : schema.Keys()) deck.values_[key.name] = {key.fallback, "default"};
  for (const auto& group : schema.ExclusiveGroups()) {
    for (std::size_t i = 1; i < group.size(); ++i) deck.values_[group[i]].dropped = true;
  }
  // The command line last: what it takes drops the rest of an exclusive group.
  for (const Source* source : {&in_deck, &on_command_line}) {
    for (const auto& [name, value, line] : source->Values()) {
      deck.Take(name, {value, source->Where(line), true, false});
    }
  }
  return deck;
}

}  // namespace trireme::deck
