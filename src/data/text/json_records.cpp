// One line is parsed at a time, and kept whole for that.
#include "json_records.hpp"

#include <fmt/format.h>

#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/input/json_text.hpp"
#include "trireme/input/shown.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kMaxRecord = std::int64_t{1} << 30;  // bytes of a line

const std::string& Member(const nlohmann::json& record, const std::string& key,
                          const char* deck_key, const std::string& where) {
  const auto member = record.find(key);
  if (member == record.end()) {
    throw InputError(fmt::format("{}: the record has no \"{}\"", where, key),
                     fmt::format("{} names the member that holds the text.", deck_key));
  }
  if (!member->is_string()) {
    throw InputError(
        fmt::format("{}: \"{}\" is no text but {}", where, key, input::Brief(*member)));
  }
  return member->get_ref<const std::string&>();
}

}  // namespace

JsonRecords::JsonRecords(RecordSink& next, const RecordKeys& keys, std::string path)
    : next_(next), keys_(keys), path_(std::move(path)) {}

void JsonRecords::Text(std::string_view piece, std::int64_t offset) {
  if (line_.empty()) offset_ = offset;
  if (static_cast<std::int64_t>(line_.size() + piece.size()) > kMaxRecord) {
    throw InputError(fmt::format("{}: the record at byte {} is longer than {} bytes", path_,
                                 offset_, kMaxRecord));
  }
  line_ += piece;
}

void JsonRecords::End() {
  const std::string line = std::exchange(line_, {});
  if (line.find_first_not_of(" \t\r") == std::string::npos) return;
  const std::string where = fmt::format("{}: record at byte {}", path_, offset_);
  const nlohmann::json record = input::ParseJson(line, where, kMaxRecord);
  if (!record.is_object()) {
    throw InputError(fmt::format("{}: an object expected, {} found", where, input::Brief(record)));
  }
  const std::string& text = Member(record, keys_.text, "tokenize.text_key", where);
  if (!keys_.prompt.empty()) {
    next_.Prompt(Member(record, keys_.prompt, "tokenize.prompt_key", where));
  }
  next_.Text(text, offset_);
  next_.End();
}

}  // namespace trireme::data
