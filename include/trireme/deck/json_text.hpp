// Reads JSON from files that may be damaged or malicious: length and depth are limited, members
// have types, and errors name the file and the place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::deck {

// Limit of open brackets; Trireme's own files need 5.
inline constexpr std::size_t kMaxJsonDepth = 32;
// Limit of one text value, in bytes.
inline constexpr std::int64_t kMaxJsonText = std::int64_t{64} << 10;

// Parses a JSON text. path: for messages. Throws InputError "path: ..." with the byte of the fault
// for a text of more than `max_bytes` bytes, for what is not JSON or nested deeper than
// kMaxJsonDepth, and for an object with two members of one name (parsers differ in which they
// keep). The memory it takes is proportional to the length of the text.
nlohmann::json ParseJson(std::string_view text, const std::string& path, std::int64_t max_bytes);

// The same, but nullopt for a text that ParseJson refuses.
std::optional<nlohmann::json> TryParseJson(std::string_view text, std::int64_t max_bytes);

// A line of a JSON-lines file.
struct JsonLine {
  const nlohmann::json& value;
  std::int64_t number = 0;   // line number, from 1
  const std::string& where;  // "path:number"
};
// Visits the values of JSON lines in order; skips lines of white space. Throws InputError as
// ParseJson does for a line that is not JSON or is longer than `max_bytes` bytes.
void EachJsonLine(std::string_view text, const std::string& path, std::int64_t max_bytes,
                  const std::function<void(const JsonLine&)>& visit);

// Describes a value for a message, in about 100 bytes at most: "7", "\"x\"", "a list of 300", "an
// object".
std::string Brief(const nlohmann::json& value);

// An object whose members are read by type. Holds a reference: the value must outlive it. Each
// getter throws InputError "where: name: ... expected, ... found" if the member is missing, has
// another type or is out of range.
class JsonObject {
 public:
  // where: the file's path, or "path: place". Throws InputError unless `value` is an object.
  JsonObject(const nlohmann::json& value, std::string where);
  JsonObject(nlohmann::json&&, std::string) = delete;

  bool Has(const std::string& name) const;
  const std::string& Where() const { return where_; }

  // An integer between the bounds, both included; 1.0 is not an integer.
  std::int64_t Integer(const std::string& name, std::int64_t least = 0,
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  // A finite number between the bounds, both included.
  double Real(const std::string& name, double least = std::numeric_limits<double>::lowest(),
              double most = std::numeric_limits<double>::max()) const;
  bool Truth(const std::string& name) const;
  // A text of at most `max_bytes` bytes.
  const std::string& Text(const std::string& name, std::int64_t max_bytes = kMaxJsonText) const;
  // A list of at most `max_items` integers of at least 0.
  std::vector<std::int64_t> Integers(const std::string& name, std::size_t max_items) const;
  // A list of values of any type.
  const nlohmann::json& List(const std::string& name) const;
  // A member that is an object; messages call it "where: name".
  JsonObject Object(const std::string& name) const;

 private:
  const nlohmann::json& Member(const std::string& name, const std::string& expected) const;
  [[noreturn]] void Refuse(const std::string& name, const std::string& expected,
                           const std::string& found) const;

  const nlohmann::json& value_;
  std::string where_;
};

// `value` as an integer; nullopt for another type and for a number beyond 63 bits.
std::optional<std::int64_t> WholeNumber(const nlohmann::json& value);

// The text of a member of an object; empty if it is missing or not a text.
std::string TextOf(const nlohmann::json& object, const char* name);

}  // namespace trireme::deck
