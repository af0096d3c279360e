// Deck: parsing, reading values, supplying them from elsewhere, and writing the resolved deck.
#include "trireme/deck/deck.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <boost/program_options/errors.hpp>
#include <boost/program_options/options_description.hpp>
#include <boost/program_options/parsers.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "value.hpp"

namespace trireme::deck {

namespace {

namespace po = boost::program_options;

// A file with more unreadable lines is not a deck; its other lines are ignored.
constexpr std::size_t kMaximumErrors = 20;

std::vector<std::string> SplitLines(std::string text) {
  constexpr const char* kByteOrderMark = "\xEF\xBB\xBF";  // some editors put one first
  if (text.starts_with(kByteOrderMark)) text.erase(0, 3);
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;  // DOS line end
    if (text[i] == '\n' || text[i] == '\r') {  // the latter alone: old Macs
      lines.emplace_back();
    } else {
      lines.back() += text[i];
    }
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

std::string WithoutComment(const std::string& line) { return Trim(line.substr(0, line.find('#'))); }

bool IsSection(const std::string& line) { return line.front() == '[' && line.back() == ']'; }

bool HasGluedComment(const std::string& line) {
  const std::size_t hash = line.find('#');
  if (hash == std::string::npos || hash == 0) return false;
  const char before = line[hash - 1];
  return before != ' ' && before != '\t' && before != '=';
}

// Comments of the resolved deck are aligned in one column, except after values longer than this.
constexpr std::size_t kWidestAligned = 40;

// Further problems are counted, not printed.
constexpr std::size_t kMaximumPrinted = 30;

// A value that was given. line: counted from 1, in the deck or among the overrides.
struct Given {
  std::string name;  // "section.key"
  std::string text;
  int line = 0;
};

// The deck or the command line as a source of values, with the problems found in it.
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

  // Checks a value, and keeps it if it is good and the first of its key.
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

  // Reports two keys of an exclusive group in this source: nobody can tell which was meant.
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
  std::string path_;                          // empty: the command line
  std::vector<Given> values_;                 // the good values, in order
  std::map<std::string, int> lines_;          // by declared key: line of its first mention
  std::multimap<int, std::string> problems_;  // messages by line
};

// Hint for an unknown key: the sections that have a key of that name, a similar key, or how to list
// the keys.
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
  return SectionsText(schema);
}

// A line "key = value" of the deck.
struct Assignment {
  int line = 0;                // from 1
  std::string section;         // as between the brackets; empty before the first section
  std::string key;             // without the section
  std::string value;           // without surrounding blanks, comment cut
  bool glued_comment = false;  // a '#' follows the value without a blank between
};

void AddDeckLine(const Schema& schema, const Assignment& line, Source& deck) {
  const std::string name = line.section + "." + line.key;
  const Key* const key = schema.Find(line.section.empty() ? line.key : name);
  if (line.key.empty()) {
    deck.Report(line.line, "there is no key before the '='");
  } else if (line.key.find("\xC2\xA0") != std::string::npos) {
    deck.Report(line.line, "the line holds a no-break space before the '='",
                "Type it anew, with plain blanks.");
  } else if (line.section.empty()) {
    const std::size_t dot = line.key.find('.');
    deck.Report(line.line, fmt::format("the key '{}' stands outside a section", Shown(line.key)),
                key == nullptr ? HintForKey(schema, "", line.key)
                               : fmt::format("Write '{}' below [{}].", line.key.substr(dot + 1),
                                             line.key.substr(0, dot)));
  } else if (key == nullptr) {
    deck.Report(line.line, fmt::format("unknown key '{}' in [{}]", Shown(line.key), line.section),
                HintForKey(schema, line.section, line.key));
  } else if (key->kind == KeyKind::kText && line.glued_comment) {
    deck.Report(line.line,
                fmt::format("{}: the '#' begins a comment, which would leave the value '{}'", name,
                            Shown(line.value)),
                "Put a blank before the comment, or choose a name without '#'.");
  } else {
    deck.Add({name, line.value, line.line});
  }
}

// Whether the lines can be read; reports UTF-16 and files that are not text.
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

// The value on a line "key = value" without a comment; nullopt if the line has another form. Reads
// one line at a time, since Boost.Program_options does not tell in which line of a text it stopped.
std::optional<std::string> ValueOn(const std::string& line) {
  std::istringstream stream(line);
  try {
    return po::parse_config_file(stream, po::options_description(), true)
        .options.at(0)
        .value.front();
  } catch (const po::invalid_config_file_syntax&) {
    return std::nullopt;
  }
}

void ReadDeck(const Schema& schema, const std::string& text, Source& deck) {
  if (!IsText(text, deck)) return;
  std::string section;
  bool outside = true;  // before the first section
  std::size_t errors = 0;
  int number = 0;
  for (const std::string& whole : SplitLines(text)) {
    ++number;
    const std::string line = WithoutComment(whole);
    if (line.empty()) continue;
    if (IsSection(line)) {
      section = line.substr(1, line.size() - 2);
      outside = false;
      if (schema.HasSection(section)) continue;
      deck.Report(number, fmt::format("unknown section [{}]", Shown(section)),
                  HintForSection(schema, section));
    } else if (errors == kMaximumErrors) {
      continue;
    } else if (const auto value = ValueOn(line)) {
      // Keys of an unknown section are not checked, since the section was reported.
      if (!outside && !schema.HasSection(section)) continue;
      AddDeckLine(
          schema,
          {number, section, Trim(line.substr(0, line.find('='))), *value, HasGluedComment(whole)},
          deck);
    } else {
      ++errors;
      const bool other_comment = line.starts_with(';') || line.starts_with("//");
      deck.Report(number, fmt::format("'{}' is neither 'key = value' nor '[section]'", Shown(line)),
                  other_comment ? "Comments begin with '#'." : "");
    }
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

const Deck::Value& Deck::Find(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw std::logic_error("deck key was not declared: " + name);
  return found->second;
}

const std::string& Deck::Find(const std::string& name, KeyKind kind) const {
  const Value& value = Find(name);
  const KeyKind declared = schema_->Find(name)->kind;
  // A choice is read as a text.
  const KeyKind readable = declared == KeyKind::kChoice ? KeyKind::kText : declared;
  if (readable != kind) throw std::logic_error("deck key read as another kind: " + name);
  return value.text;
}

// The texts were checked when they were stored, so these conversions cannot fail.
std::int64_t Deck::Integer(const std::string& name) const {
  return ToInteger(Find(name, KeyKind::kInteger)).value();
}

double Deck::Real(const std::string& name) const {
  return ToReal(Find(name, KeyKind::kReal)).value();
}

const std::string& Deck::Text(const std::string& name) const { return Find(name, KeyKind::kText); }

static bool IsYes(const std::string& text) {
  return text == "yes" || text == "true" || text == "on";
}

bool Deck::Switch(const std::string& name) const { return IsYes(Find(name, KeyKind::kSwitch)); }

bool Deck::Given(const std::string& name) const { return Find(name).given; }

bool Deck::Differs(const std::string& name) const {
  if (!Given(name)) return false;
  const Key& key = *schema_->Find(name);
  const std::string& text = Find(name).text;
  if (key.kind == KeyKind::kReal) return ToReal(text) != ToReal(key.fallback);
  if (key.kind == KeyKind::kInteger) return ToInteger(text) != ToInteger(key.fallback);
  if (key.kind == KeyKind::kSwitch) return IsYes(text) != IsYes(key.fallback);
  return text != key.fallback;
}

void Deck::RefuseUnused(bool unused, const std::string& name, const std::string& what,
                        const std::string& advice) const {
  if (unused && Differs(name)) throw Complain(name, what, advice);
}

std::string Deck::Where(const std::string& name) const { return Find(name).where; }

void Deck::Take(const std::string& name, const Value& value) {
  for (const std::string& other : ExcludedBy(*schema_, name)) {
    values_[other] = {schema_->Find(other)->fallback, "default", false, true};
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
  for (const std::string& other : ExcludedBy(*schema_, name)) {
    if (Find(other).given) return;  // the user chose another key of the group
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
  // A value that the user did not write is shown with its origin.
  const std::string subject = value.given
                                  ? fmt::format("{}: {}", value.where, assignment)
                                  : fmt::format("{}: {} ({})", deck, assignment, value.where);
  // A message about a file begins with its path, which the assignment has shown.
  const std::string path = value.text + ": ";
  const bool shown = !value.text.empty() && message.starts_with(path);
  return InputError(subject + ": " + (shown ? message.substr(path.size()) : message), hint);
}

std::string Deck::Resolved() const {
  std::string out;
  for (const auto& [section, help] : schema_->Sections()) {
    const auto lines = Section(section);
    std::size_t key_width = 0, value_width = 0;
    for (const auto& [key, value] : lines) {
      key_width = std::max(key_width, key.size());
      if (value.size() <= kWidestAligned) value_width = std::max(value_width, value.size());
    }
    if (lines.empty()) continue;
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const auto& [key, value] : lines) {
      const std::string where = Where(section + "." + key);
      const std::string comment = where == "default" ? "" : "# from " + where;
      std::string text =
          fmt::format("{:<{}} = {:<{}}  {}", key, key_width, value, value_width, comment);
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + "\n";
    }
  }
  return out;
}

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
  // The command line comes last: its values drop the other keys of their exclusive groups.
  for (const Source* source : {&in_deck, &on_command_line}) {
    for (const auto& [name, value, line] : source->Values()) {
      deck.Take(name, {value, source->Where(line), true, false});
    }
  }
  return deck;
}

std::string_view Trimmed(std::string_view text) {
  constexpr const char* kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> entries;
  while (true) {
    const std::size_t comma = text.find(',');
    entries.push_back(Trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return entries;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace trireme::deck
