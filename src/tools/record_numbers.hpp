// Numbers of a record, by name.
#ifndef TRIREME_SRC_TOOLS_RECORD_NUMBERS_HPP_
#define TRIREME_SRC_TOOLS_RECORD_NUMBERS_HPP_

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::tools {

// The number of a parsed record; NaN for one that is missing, null or no number.
inline double NumberOf(const nlohmann::json& record, const char* name) {
  const auto member = record.find(name);
  return member != record.end() && member->is_number() ? member->get<double>() : NAN;
}

using deck::TextOf;

// The number after `key` ("\"loss\":") in a line as our own writer makes it, without parsing the
// rest: a quote within a text of JSON has a backslash before it, so that the key cannot stand in
// one. NaN for null; nothing if there is no such key or no whole number there.
inline std::optional<double> NumberAfter(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  const char* const begin = line.data() + at + key.size();
  const char* const end = line.data() + line.size();
  if (std::string_view(begin, end).starts_with("null")) return NAN;
  double value = 0;
  const auto [after, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || after == end || (*after != ',' && *after != '}')) return std::nullopt;
  return value;
}

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_RECORD_NUMBERS_HPP_
