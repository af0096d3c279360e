// The records of metrics.jsonl: cut when a run is resumed, searched for its end.
#include "metrics_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {

namespace {

struct StepRange {
  std::int64_t last = 0;        // step that is kept
  std::int64_t best_after = 0;  // see CutMetrics
};

void NoteStep(std::int64_t step, History& history) {
  if (step > history.next_step) history.missing.emplace_back(history.next_step, step - 1);
  history.next_step = std::max(history.next_step, step + 1);
}

// Whether a line is a record that a run resumed after `steps.last` keeps; notes what it says.
// Members of other types than ours make a line no record, but for the loss, null after a
// divergence.
bool Keeps(std::string_view line, const StepRange& steps, History& history) {
  if (const std::optional<StepFacts> facts = ReadStepLine(line)) {
    if (facts->step > steps.last) return false;
    if (!history.first_loss) history.first_loss = facts->loss;
    NoteStep(facts->step, history);
    return true;
  }
  const auto json = deck::TryParseJson(line, kMaxLineBytes);
  if (!json || !json->is_object()) return false;
  const auto kind = json->find("kind");
  const auto step = json->find("step");
  if (kind == json->end() || !kind->is_string() || step == json->end()) return false;
  const auto at = deck::WholeNumber(*step);
  if (!at || *at > steps.last || *kind == NameOf(Record::Kind::kDone)) return false;
  if (*kind == NameOf(Record::Kind::kStep)) NoteStep(*at, history);
  // The steps before are in another folder.
  if (history.next_step == 1 && json->value("event", nlohmann::json()) == kBranchedOff) {
    history.next_step = *at + 1;
  }
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
  if (line.find("\"done\"") == std::string_view::npos) return false;
  const auto json = deck::TryParseJson(line, kMaxLineBytes);
  return json && json->is_object() &&
         json->value("kind", nlohmann::json()) == NameOf(Record::Kind::kDone);
}

// Step of an event of a published checkpoint.
std::optional<std::int64_t> CheckpointIn(std::string_view line, const std::string& event) {
  if (line.find('"' + event + '"') == std::string_view::npos) return std::nullopt;
  const auto json = deck::TryParseJson(line, kMaxLineBytes);
  if (!json || !json->is_object() || json->value("kind", nlohmann::json()) != "event" ||
      json->value("event", nlohmann::json()) != event) {
    return std::nullopt;
  }
  return deck::WholeNumber(json->value("step", nlohmann::json()));
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

// Lines of a file from its end, read in blocks.
class LinesFromTheEnd {
 public:
  explicit LinesFromTheEnd(const std::string& path)
      : path_(path), file_(path, std::ios::binary | std::ios::ate), block_(kBlock, '\0') {
    begin_ = file_ ? static_cast<std::int64_t>(file_.tellg()) : -1;
    if (begin_ < 0) Fail();
  }

  // Calls found(line) for each whole line of at most kMaxLineBytes, the last one first, until it
  // returns true. Takes memory for a block and a record.
  template <typename Found>
  void Search(Found&& found) {
    while (begin_ > 0) {
      std::string_view block = ReadBlock();
      for (std::size_t at = block.rfind('\n'); at != std::string_view::npos;
           at = block.rfind('\n')) {
        if (Ends(block.substr(at + 1), found)) return;
        block = block.substr(0, at);
      }
      Keep(block);
    }
    Ends({}, found);
  }

 private:
  static constexpr std::int64_t kBlock = std::int64_t{1} << 20;

  [[noreturn]] void Fail() const { throw RunError(path_ + ": cannot be read"); }

  std::string_view ReadBlock() {
    const std::int64_t size = std::min(begin_, kBlock);
    begin_ -= size;
    file_.seekg(begin_);
    if (!file_.read(block_.data(), size)) Fail();
    return {block_.data(), static_cast<std::size_t>(size)};
  }

  // The line that `start` begins is complete.
  template <typename Found>
  bool Ends(std::string_view start, Found& found) {
    Keep(start);
    const bool take = whole_ && !too_long_ && found(std::string_view(rest_));
    rest_.clear();
    too_long_ = false;
    whole_ = true;
    return take;
  }

  void Keep(std::string_view start) {
    too_long_ = too_long_ || std::ssize(rest_) + std::ssize(start) > kMaxLineBytes;
    if (too_long_) {
      rest_.clear();
    } else {
      rest_.insert(0, start);
    }
  }

  const std::string path_;
  std::ifstream file_;
  std::string block_;
  std::int64_t begin_;  // of the blocks read so far
  std::string rest_;    // of the line whose start is not yet read
  bool whole_ = false;  // a newline ends it
  bool too_long_ = false;
};

// The last record for which read(line) has a value; none without such a file. Records of steps are
// passed over.
template <typename Read>
auto LastRecord(const std::string& folder, Read&& read) -> decltype(read(std::string_view())) {
  const std::string path = folder + "/metrics.jsonl";
  std::error_code ignored;
  decltype(read(std::string_view())) last;
  if (!std::filesystem::is_regular_file(path, ignored)) return last;
  LinesFromTheEnd(path).Search([&](std::string_view line) {
    if (!line.starts_with("{\"kind\":\"step\"")) last = read(line);
    return last.has_value();
  });
  return last;
}

}  // namespace

void KeepLines(std::string& text, std::int64_t resume_step) {
  std::string kept;
  History ignored;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view line(text.data() + begin, end - begin - 1);
    if (Keeps(line, {resume_step, 0}, ignored)) kept.append(line).append("\n");
    begin = end;
  }
  text = std::move(kept);
}

History CutMetrics(const std::string& path, std::int64_t resume_step, std::int64_t best_after) {
  History history;
  std::error_code error;
  // A pipe or a device holds no records. A link is followed, here as by AppendFile.
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found) NoteStep(resume_step + 1, history);
  if (type != std::filesystem::file_type::regular) return history;
  const std::string target = std::filesystem::canonical(path, error).string();
  if (error) throw RunError(fmt::format("{}: cannot be read: {}", path, error.message()));
  std::vector<bool> kept;  // by line
  ForEachLine(target, [&](std::string_view line, bool whole) {
    kept.push_back(whole && Keeps(line, {resume_step, best_after}, history));
  });
  NoteStep(resume_step + 1, history);
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
  return LastRecord(folder,
                    [](std::string_view line) {
                      return IsDone(line) ? std::optional<bool>(true) : std::nullopt;
                    })
      .has_value();
}

std::optional<std::int64_t> LastCheckpoint(const std::string& folder, const std::string& event) {
  return LastRecord(folder, [&](std::string_view line) { return CheckpointIn(line, event); });
}

}  // namespace trireme::report
