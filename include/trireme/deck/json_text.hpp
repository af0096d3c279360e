// JSON read from files that may be damaged or hostile: bounded length and depth, typed members,
// and errors that name the file and the place.
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

inline constexpr std::size_t kMaxJsonDepth = 32;  // open brackets; our own files need 5
inline constexpr std::int64_t kMaxJsonText = std::int64_t{64} << 10;  // bytes of one text value

// The value of a JSON text of at most `max_bytes` bytes. Throws InputError "path: ..." with the
// byte of the fault: too long, not JSON, nested deeper than kMaxJsonDepth, or an object that names
// a member twice (a parser would keep either). Takes memory in proportion to the text only.
nlohmann::json ParseJson(std::string_view text, const std::string& path, std::int64_t max_bytes);

// The same without an error: nothing for a text that ParseJson refuses.
std::optional<nlohmann::json> TryParseJson(std::string_view text, std::int64_t max_bytes);

// A value of a file of JSON lines.
struct JsonLine {
  const nlohmann::json& value;
  std::int64_t number = 0;   // of the line, from 1
  const std::string& where;  // "path:number"
};
// Visits the values of JSON lines in their order; lines of white space are passed over. Throws
// InputError as ParseJson for a line that is not JSON or longer than `max_bytes` bytes.
void EachJsonLine(std::string_view text, const std::string& path, std::int64_t max_bytes,
                  const std::function<void(const JsonLine&)>& visit);

// The value for a message, in at most about 100 bytes: "7", "\"x\"", "a list of 300", "an object".
std::string Brief(const nlohmann::json& value);

// An object whose members are read by type. Holds a reference: the value must live longer. Each
// getter throws InputError "where: name: ... expected, ... found" for a missing member, another
// type and a value out of range.
class JsonObject {
 public:
  // `where`: the file's path, or "path: place". Throws InputError unless `value` is an object.
  JsonObject(const nlohmann::json& value, std::string where);
  JsonObject(nlohmann::json&&, std::string) = delete;

  bool Has(const std::string& name) const;
  const std::string& Where() const { return where_; }

  // An integer between the bounds, both included. 1.0 is none.
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
  // A list of anything.
  const nlohmann::json& List(const std::string& name) const;
  // An object, called "where: name".
  JsonObject Object(const std::string& name) const;

 private:
  const nlohmann::json& Member(const std::string& name, const std::string& expected) const;
  [[noreturn]] void Refuse(const std::string& name, const std::string& expected,
                           const std::string& found) const;

  const nlohmann::json& value_;
  std::string where_;
};

// The integer of `value`, or nothing for another type and for a number beyond 63 bits.
std::optional<std::int64_t> WholeNumber(const nlohmann::json& value);

// The text of a member of an object; empty for one that is missing or no text.
std::string TextOf(const nlohmann::json& object, const char* name);

}  // namespace trireme::deck
