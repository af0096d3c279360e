// Checks of single values. Numbers are read strictly: the whole text, finite, no separators.
#include "value.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <sstream>

#include "trireme/base/utf8.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

namespace {

// Least number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into
// `b` (optimal string alignment).
int EditDistance(const std::string& a, const std::string& b) {
  // [i][j]: distance of a's first i letters from b's first j letters
  std::vector<std::vector<int>> least(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) least[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) least[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int other = a[i - 1] == b[j - 1] ? 0 : 1;
      least[i][j] =
          std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + other});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
    }
  }
  return least.back().back();
}

// Largest edit distance at which a name of this length counts as a typing error.
int NearDistance(const std::string& name) { return 1 + static_cast<int>(name.size()) / 4; }

// The candidate nearest to `name`; empty if none is near.
std::string NearestOf(const std::string& name, const std::vector<std::string>& candidates) {
  std::string nearest;
  int distance = NearDistance(name) + 1;
  for (const std::string& candidate : candidates) {
    const int this_distance = EditDistance(name, candidate);
    if (this_distance >= distance) continue;
    distance = this_distance;
    nearest = candidate;
  }
  return nearest;
}

// Suggestions beyond this number would not help.
constexpr std::size_t kMaximumSuggestions = 3;

// Cuts "data.batch" into "data" and "batch"; a name without a dot has no section.
std::pair<std::string, std::string> Cut(const std::string& name) {
  const std::size_t end = name.find('.') + 1;  // 0 without a dot
  return {name.substr(0, end == 0 ? 0 : end - 1), name.substr(end)};
}

// " (unit: sequences; default: 16)": what a user needs to write a better value.
std::string Facts(const Key& key) {
  const std::string unit = key.unit.empty() ? "" : "unit: " + key.unit + "; ";
  return fmt::format(" ({}default: {})", unit, key.fallback.empty() ? "empty" : key.fallback);
}

bool InRange(const Key& key, double value) {
  const bool above =
      key.range.open_minimum ? value > key.range.minimum : value >= key.range.minimum;
  const bool below =
      key.range.open_maximum ? value < key.range.maximum : value <= key.range.maximum;
  return above && below;
}

Problem OutOfRange(const Key& key) {
  const std::string range = RangeText(key);
  return {(range.empty() ? "too large" : "must be " + range) + Facts(key), ""};
}

// Finds characters that look like ASCII but are not, as word processors write them.
Problem CheckLookalikes(const std::string& text) {
  if (text.find("\xC2\xA0") != std::string::npos) {
    return {"the value holds a no-break space", "Type it anew, with a plain blank."};
  }
  for (const char* const dash : {"\xE2\x88\x92", "\xE2\x80\x93", "\xE2\x80\x94", "\xE2\x80\x90"}) {
    if (text.find(dash) != std::string::npos) {
      return {"the value holds a dash that is no minus sign", "Type it anew, with '-'."};
    }
  }
  return {};
}

// A hint with the number that was probably meant; empty if there is no guess.
std::string NumberHint(const std::string& text) {
  std::string other = text;
  if (std::count(other.begin(), other.end(), ',') == 1 && other.find('.') == std::string::npos) {
    other[other.find(',')] = '.';
    if (ToReal(other)) return "Decimals follow a point: " + other;
  }
  if (text.size() > 1 && std::string("fFlLdD").find(text.back()) != std::string::npos) {
    other = text.substr(0, text.size() - 1);
    if (ToReal(other)) return fmt::format("Without the '{}': {}", text.back(), other);
  }
  return "";
}

// The same for an integer, which may have separators between thousands.
std::string IntegerHint(const std::string& text) {
  std::string digits = text;
  std::erase_if(digits, [](char c) { return c == ',' || c == '_' || c == '\''; });
  const bool apart = digits.size() < text.size() && ToInteger(digits);
  return apart ? "Write it in digits: " + digits : NumberHint(text);
}

Problem CheckInteger(const Key& key, const std::string& text) {
  if (const auto value = ToInteger(text)) {
    return InRange(key, static_cast<double>(*value)) ? Problem{} : OutOfRange(key);
  }
  if (const Problem problem = CheckLookalikes(text)) return problem;
  const std::size_t digits = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  const bool only_digits =
      text.size() > digits && text.find_first_not_of("0123456789", digits) == std::string::npos;
  if (only_digits) return {"does not fit 64 bits" + Facts(key), ""};
  // 1e6 and 1000.0 are integers to a person: say how to write them.
  const auto real = ToReal(text);
  constexpr double kExactIntegers = 0x1p53;
  const bool whole = real && std::abs(*real) < kExactIntegers && *real == std::floor(*real);
  return {"not an integer" + Facts(key),
          whole ? fmt::format("Write it in digits: {:.0f}", *real) : IntegerHint(text)};
}

Problem CheckReal(const Key& key, const std::string& text) {
  if (const auto value = ToReal(text)) return InRange(key, *value) ? Problem{} : OutOfRange(key);
  if (const Problem problem = CheckLookalikes(text)) return problem;
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool number = end == text.data() + text.size() && error != std::errc::invalid_argument;
  return {(number ? "not a finite number in double precision" : "not a number") + Facts(key),
          NumberHint(text)};
}

// Names are taken literally: nothing expands them, and only '#' begins a comment.
Problem CheckPath(const std::string& text) {
  if (text.find(" ;") != std::string::npos || text.find("\t;") != std::string::npos) {
    return {"the ';' would become part of the name", "Comments begin with '#'."};
  }
  const std::size_t dollar = text.find('$');
  const auto begins_name = [](char c) { return std::isalpha(c) != 0 || c == '_' || c == '{'; };
  if (dollar != std::string::npos && dollar + 1 < text.size() && begins_name(text[dollar + 1])) {
    return {"variables are not replaced by their values",
            "Write the value, or give the key on the command line, where the shell replaces it."};
  }
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    if (Trim(item).starts_with('~')) {
      return {"'~' does not stand for the home folder here", "Write the whole path."};
    }
  }
  return {};
}

Problem CheckText(const Key& key, const std::string& text) {
  if (text.find('#') != std::string::npos) {
    return {"the value holds a '#', which begins a comment in a deck",
            "Choose a name without '#'."};
  }
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\t'; };
  if (std::any_of(text.begin(), text.end(), control)) {
    return {"the value holds a line break or another control character", ""};
  }
  const bool quoted = text.size() >= 2 && text.front() == text.back() &&
                      (text.front() == '"' || text.front() == '\'');
  if (quoted) {
    return {"quotes would become part of the value" + Facts(key),
            "Write it without quotes; blanks inside are kept."};
  }
  return key.path ? CheckPath(text) : Problem{};
}

Problem CheckChoice(const Key& key, const std::string& text) {
  if (std::find(key.choices.begin(), key.choices.end(), text) != key.choices.end()) return {};
  if (const Problem problem = CheckLookalikes(text)) return problem;
  const std::string nearest = NearestOf(text, key.choices);
  return {fmt::format("not one of {}{}", fmt::join(key.choices, ", "), Facts(key)),
          nearest.empty() ? "" : "Did you mean " + nearest + "?"};
}

}  // namespace

Problem CheckValue(const Key& key, const std::string& text) {
  if (key.kind == KeyKind::kInteger) return CheckInteger(key, text);
  if (key.kind == KeyKind::kReal) return CheckReal(key, text);
  return key.kind == KeyKind::kText ? CheckText(key, text) : CheckChoice(key, text);
}

// Parses the whole text as a number. Allows a '+' in front, which from_chars refuses.
template <typename Number>
static std::optional<Number> Parse(const std::string& text) {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-';
  const char* const end = text.data() + text.size();
  Number value = 0;
  const auto [stop, error] = std::from_chars(text.data() + (plus ? 1 : 0), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::optional<std::int64_t> ToInteger(const std::string& text) { return Parse<std::int64_t>(text); }

std::optional<double> ToReal(const std::string& text) {
  const auto value = Parse<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string RangeText(const Key& key) {
  const bool has_minimum = std::isfinite(key.range.minimum);
  const bool has_maximum = std::isfinite(key.range.maximum);
  // Integers print as such up to 2^53: 1000000, not 1e+06.
  const auto number = [&](double value) {
    return key.kind == KeyKind::kInteger ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
  };
  if (has_minimum && has_maximum && !key.range.open_minimum && !key.range.open_maximum) {
    return fmt::format("between {} and {}", number(key.range.minimum), number(key.range.maximum));
  }
  std::string text;
  if (has_minimum)
    text = (key.range.open_minimum ? "above " : "at least ") + number(key.range.minimum);
  if (has_minimum && has_maximum) text += " and ";
  if (has_maximum)
    text += (key.range.open_maximum ? "below " : "at most ") + number(key.range.maximum);
  return text;
}

std::string Shown(const std::string& text) {
  constexpr std::size_t kLongest = 120;
  std::size_t end = std::min(text.size(), kLongest);
  while (end > 0 && end < text.size() && ContinuesCharacter(text[end])) --end;
  return Printable(text.substr(0, end), false, "?") + (end < text.size() ? "..." : "");
}

std::string Trim(const std::string& text) { return std::string(Trimmed(text)); }

std::string Schema::Nearest(const std::string& name) const {
  const auto [section, own] = Cut(name);
  int distance = NearDistance(own);
  std::vector<std::string> nearest;
  for (const Key& key : keys_) {
    const auto [key_section, key_own] = Cut(key.name);
    // The right name in another section counts as one error, so it ties with a misspelt name in
    // this section.
    const int elsewhere = section.empty() || section == key_section ? 0 : 1;
    const int this_distance =
        std::min(EditDistance(name, key.name), EditDistance(own, key_own) + elsewhere);
    if (this_distance > distance) continue;
    if (this_distance < distance) nearest.clear();
    distance = this_distance;
    nearest.push_back(key.name);
  }
  if (nearest.size() > kMaximumSuggestions) nearest.resize(kMaximumSuggestions);
  return fmt::format("{}", fmt::join(nearest, " or "));
}

std::string Schema::NearestSection(const std::string& section) const {
  std::vector<std::string> names;
  for (const auto& [name, help] : sections_) names.push_back(name);
  const std::string nearest = NearestOf(section, names);
  return nearest.empty() ? nearest : "[" + nearest + "]";
}

}  // namespace trireme::deck
