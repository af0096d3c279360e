// The records of metrics.jsonl: cut when a run is resumed, searched for its end.
#include "metrics_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <vector>

#include "append_file.hpp"
#include "trireme/base/error.hpp"
#include "trireme/input/json_text.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::monitor {

namespace {

struct Range {
  std::int64_t last = 0;        // step that is kept
  std::int64_t best_after = 0;  // see CutMetrics
};

// Whether a line is a record that a run resumed after `steps.last` keeps; notes what it says.
// Members of other types than ours make a line no record, but for the loss, null after a
// divergence.
bool Keeps(std::string_view line, const Range& steps, History& history) {
  const auto json = input::TryParseJson(line, kMaxLineBytes);
  if (!json || !json->is_object()) return false;
  const auto kind = json->find("kind");
  const auto step = json->find("step");
  if (kind == json->end() || !kind->is_string() || step == json->end()) return false;
  const auto at = input::WholeNumber(*step);
  if (!at || *at > steps.last || *kind == NameOf(Record::Kind::kDone)) return false;
  const auto loss = json->find("loss");
  if (loss == json->end() || !loss->is_number()) return true;
  const auto value = loss->get<double>();
  if (*kind == NameOf(Record::Kind::kStep) && !history.first_loss) history.first_loss = value;
  if (*kind == NameOf(Record::Kind::kValid) && *at > steps.best_after &&
      value < history.best_valid.value_or(INFINITY)) {
    history.best_valid = value;
    history.best_valid_step = *at;
  }
  return true;
}

bool IsDone(std::string_view line) {
  const auto json = input::TryParseJson(line, kMaxLineBytes);
  return json && json->is_object() &&
         json->value("kind", nlohmann::json()) == NameOf(Record::Kind::kDone);
}

// Step of an event of a published checkpoint.
std::optional<std::int64_t> CheckpointIn(std::string_view line) {
  // Most lines are another record: not worth parsing.
  if (line.find("\"checkpoint\"") == std::string_view::npos) return std::nullopt;
  const auto json = input::TryParseJson(line, kMaxLineBytes);
  if (!json || !json->is_object() || json->value("kind", nlohmann::json()) != "event" ||
      json->value("event", nlohmann::json()) != "checkpoint") {
    return std::nullopt;
  }
  return input::WholeNumber(json->value("step", nlohmann::json()));
}

// Calls use(line, whole) for each line of a file, without its newline; `whole` is false for one
// longer than a record, of which only the start is passed, and for a last one without a newline.
// Takes memory for one record.
template <typename Use>
void ForEachLine(const std::string& path, Use&& use) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> buffer(kMaxLineBytes + 2);  // a line, its newline, a final zero
  while (file) {
    file.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const auto taken = static_cast<std::size_t>(file.gcount());
    if (file.bad()) break;
    if (file.eof()) {  // torn
      if (taken > 0) use(std::string_view(buffer.data(), taken), false);
      return;
    }
    const bool whole = !file.fail();
    use(std::string_view(buffer.data(), whole ? taken - 1 : taken), whole);
    if (whole) continue;
    file.clear();
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  throw RunError(path + ": cannot be read");
}

// Calls use(line) for each whole line of the records of a run; for none without such a file.
template <typename Use>
void ForEachRecord(const std::string& folder, Use&& use) {
  const std::string path = folder + "/metrics.jsonl";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  ForEachLine(path, [&](std::string_view line, bool whole) {
    if (whole) use(line);
  });
}

}  // namespace

History CutMetrics(const std::string& path, std::int64_t resume_step, std::int64_t best_after) {
  History history;
  std::error_code error;
  // A pipe or a device holds no records. A link is followed, here as by AppendFile.
  if (!std::filesystem::is_regular_file(path, error)) return history;
  const std::string target = std::filesystem::canonical(path, error).string();
  if (error) throw RunError(fmt::format("{}: cannot be read: {}", path, error.message()));
  std::vector<bool> kept;  // by line
  ForEachLine(target, [&](std::string_view line, bool whole) {
    kept.push_back(whole && Keeps(line, {resume_step, best_after}, history));
  });
  if (std::find(kept.begin(), kept.end(), false) == kept.end()) return history;
  Replacement file(target, TemporaryName(target));
  constexpr std::size_t kBlock = std::size_t{1} << 20;  // bytes written at once
  std::string block;
  auto keep = kept.begin();
  ForEachLine(target, [&](std::string_view line, bool) {
    if (keep == kept.end() || !*keep++) return;
    block.append(line).append("\n");
    if (block.size() < kBlock) return;
    file.Write(block);
    block.clear();
  });
  file.Write(block);
  Place(file, path);
  return history;
}

bool HasEnded(const std::string& folder) {
  bool ended = false;
  ForEachRecord(folder, [&](std::string_view line) { ended = ended || IsDone(line); });
  return ended;
}

std::optional<std::int64_t> LastCheckpoint(const std::string& folder) {
  std::optional<std::int64_t> last;
  ForEachRecord(folder, [&](std::string_view line) {
    if (const auto step = CheckpointIn(line)) last = step;
  });
  return last;
}

}  // namespace trireme::monitor
