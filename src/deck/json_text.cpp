// Parses JSON within limits, and reads members by type.
#include "trireme/deck/json_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

using nlohmann::json;

namespace {

// Iterator over a text that records how far the parser has read; the parser itself does not tell.
class CountedText {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountedText(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountedText& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  bool operator==(const CountedText& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// The parser's reason for refusing a text, without its own name, position and quotation of the
// text.
std::string Reason(const json::exception& problem) {
  std::string reason = problem.what();
  constexpr std::string_view kBeforeReason = ": ";
  if (const auto at = reason.find(kBeforeReason); at != std::string::npos) {
    reason = reason.substr(at + kBeforeReason.size());
  }
  return Shown(reason.substr(0, reason.find("; last read")));
}

// Builds the value while the parser reads, and refuses what exceeds the limits. The library's own
// builder with a callback looks at all members of an object after each of them: a long list of
// objects would take hours.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(const std::string& path, const char* begin)
      : path_(path), begin_(begin), reached_(begin) {}

  const char** Reached() { return &reached_; }
  json Take() { return std::move(root_); }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(std::int64_t value) override { return Put(value); }
  bool number_unsigned(std::uint64_t value) override { return Put(value); }
  bool number_float(double value, const std::string&) override { return Put(value); }
  bool string(std::string& value) override { return Put(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }  // does not occur in JSON text
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    const auto [member, is_new] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    if (!is_new) Refuse(fmt::format("\"{}\" is named twice", Shown(name)));
    member_ = &member->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& problem) override {
    Refuse("not valid JSON: " + Reason(problem));
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const {
    throw InputError(fmt::format("{}: byte {}: {}", path_, reached_ - begin_, what));
  }

  json* Place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& list = open_.back()->get_ref<json::array_t&>();
      list.push_back(std::move(value));
      return &list.back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool Put(json value) {
    Place(std::move(value));
    return true;
  }
  // Only the innermost object or list grows, so pointers to the outer ones stay valid.
  bool Open(json value) {
    if (open_.size() >= kMaxJsonDepth) {
      Refuse(fmt::format("nested deeper than {} brackets", kMaxJsonDepth));
    }
    open_.push_back(Place(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const std::string& path_;
  const char* begin_;
  const char* reached_;  // how far the parser has read
  json root_;
  std::vector<json*> open_;  // open objects and lists, outermost first
  json* member_ = nullptr;   // in the innermost object, the member named last
};

}  // namespace

json ParseJson(std::string_view text, const std::string& path, std::int64_t max_bytes) {
  if (static_cast<std::int64_t>(text.size()) > max_bytes) {
    throw InputError(fmt::format("{}: at most {} bytes of JSON expected, {} found", path, max_bytes,
                                 text.size()));
  }
  Builder builder(path, text.data());
  const CountedText begin(text.data(), builder.Reached());
  const CountedText end(text.data() + text.size(), builder.Reached());
  json::sax_parse(begin, end, &builder);
  return builder.Take();
}

std::optional<json> TryParseJson(std::string_view text, std::int64_t max_bytes) {
  try {
    return ParseJson(text, "", max_bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void EachJsonLine(std::string_view text, const std::string& path, std::int64_t max_bytes,
                  const std::function<void(const JsonLine&)>& visit) {
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const json value = ParseJson(line, where, max_bytes);
    visit({value, number, where});
  }
}

std::string Brief(const json& value) {
  constexpr std::size_t kShownItems = 8;
  if (value.is_object()) return "an object";
  if (value.is_string()) return "\"" + Shown(value.get_ref<const std::string&>()) + "\"";
  if (!value.is_array()) return value.dump();
  if (value.size() > kShownItems) return fmt::format("a list of {}", value.size());
  std::string text;
  for (const json& item : value) {
    if (!text.empty()) text += ", ";
    text += item.is_array() ? "a list" : Brief(item);
  }
  return Shown("[" + text + "]");
}

std::optional<std::int64_t> WholeNumber(const json& value) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMost) return std::nullopt;
  return value.get<std::int64_t>();
}

JsonObject::JsonObject(const json& value, std::string where)
    : value_(value), where_(std::move(where)) {
  if (value_.is_object()) return;
  throw InputError(fmt::format("{}: an object expected, {} found", where_, Brief(value_)));
}

bool JsonObject::Has(const std::string& name) const { return value_.contains(name); }

void JsonObject::Refuse(const std::string& name, const std::string& expected,
                        const std::string& found) const {
  throw InputError(fmt::format("{}: {}: {} expected, {} found", where_, name, expected, found));
}

const json& JsonObject::Member(const std::string& name, const std::string& expected) const {
  const auto found = value_.find(name);
  if (found == value_.end()) Refuse(name, expected, "nothing");
  return *found;
}

std::int64_t JsonObject::Integer(const std::string& name, std::int64_t least,
                                 std::int64_t most) const {
  const bool open = most == std::numeric_limits<std::int64_t>::max();
  const std::string expected = open ? fmt::format("an integer of at least {}", least)
                                    : fmt::format("an integer of {} to {}", least, most);
  const json& member = Member(name, expected);
  const auto value = WholeNumber(member);
  if (!value || *value < least || *value > most) Refuse(name, expected, Brief(member));
  return *value;
}

double JsonObject::Real(const std::string& name, double least, double most) const {
  const bool open = most == std::numeric_limits<double>::max();
  std::string expected = "a finite number";
  if (!open) {
    expected = fmt::format("a number of {} to {}", least, most);
  } else if (least != std::numeric_limits<double>::lowest()) {
    expected = fmt::format("a number of at least {}", least);
  }
  const json& member = Member(name, expected);
  if (!member.is_number()) Refuse(name, expected, Brief(member));
  const double value = member.get<double>();
  if (!std::isfinite(value) || value < least || value > most) Refuse(name, expected, Brief(member));
  return value;
}

bool JsonObject::Truth(const std::string& name) const {
  const json& member = Member(name, "true or false");
  if (!member.is_boolean()) Refuse(name, "true or false", Brief(member));
  return member.get<bool>();
}

const std::string& JsonObject::Text(const std::string& name, std::int64_t max_bytes) const {
  const json& member = Member(name, "a text");
  if (!member.is_string()) Refuse(name, "a text", Brief(member));
  const auto& text = member.get_ref<const std::string&>();
  if (static_cast<std::int64_t>(text.size()) > max_bytes) {
    Refuse(name, fmt::format("a text of at most {} bytes", max_bytes),
           fmt::format("{} bytes", text.size()));
  }
  return text;
}

std::vector<std::int64_t> JsonObject::Integers(const std::string& name,
                                               std::size_t max_items) const {
  const std::string expected = fmt::format("a list of at most {} integers >= 0", max_items);
  const json& member = Member(name, expected);
  if (!member.is_array() || member.size() > max_items) Refuse(name, expected, Brief(member));
  std::vector<std::int64_t> values;
  for (const json& item : member) {
    const auto value = WholeNumber(item);
    if (!value || *value < 0) Refuse(name, expected, Brief(member));
    values.push_back(*value);
  }
  return values;
}

const json& JsonObject::List(const std::string& name) const {
  const json& member = Member(name, "a list");
  if (!member.is_array()) Refuse(name, "a list", Brief(member));
  return member;
}

JsonObject JsonObject::Object(const std::string& name) const {
  return {Member(name, "an object"), where_ + ": " + name};
}

std::string TextOf(const nlohmann::json& object, const char* name) {
  const auto member = object.find(name);
  return member != object.end() && member->is_string() ? member->get<std::string>() : "";
}

}  // namespace trireme::deck
