// One line is read at a time, and kept whole for that.
#include "json_records.hpp"

#include <fmt/format.h>

#include <utility>

#include "record_scan.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kMaxRecord = std::int64_t{1} << 30;  // bytes of a line

// The text of a member, which must be there.
const std::string& TextOf(const RecordScan::Wanted& member, const std::string& deck_key,
                          const std::string& where) {
  if (member.text) return *member.text;
  constexpr const char* kSkip = "tokenize.missing = skip leaves such records out";
  if (member.is_null) {
    throw InputError(fmt::format("{}: \"{}\" is no text but null", where, member.key),
                     fmt::format("{}.", kSkip));
  }
  throw InputError(fmt::format("{}: the record has no \"{}\"", where, member.key),
                   fmt::format("{} names the member that holds the text; {}.", deck_key, kSkip));
}

}  // namespace

JsonRecords::JsonRecords(RecordSink& next, const RecordKeys& keys, std::string path, bool replace)
    : next_(next), keys_(keys), path_(std::move(path)), replace_(replace) {}

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
  RecordScan scan(line, where, replace_);
  RecordScan::Wanted text{.key = keys_.text}, prompt{.key = keys_.prompt};
  const bool prompted = !keys_.prompt.empty();
  scan.Read(text, prompted ? &prompt : nullptr);
  replaced_ += scan.Replaced();
  if (keys_.skip_missing && (!text.text || (prompted && !prompt.text))) {
    ++missing_;
    return;
  }
  const std::string& own = TextOf(text, "tokenize.text_key", where);
  if (prompted) next_.Prompt(TextOf(prompt, "tokenize.prompt_key", where), offset_);
  if (own.empty() && !prompted) ++empty_;
  next_.Text(own, offset_);
  next_.End();
}

}  // namespace trireme::data
