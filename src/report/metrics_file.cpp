// metrics.jsonl: writes the records, cuts them when a run is resumed, searches them from the end.
#include "metrics_file.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>

#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {

namespace {

struct StepRange {
  std::int64_t last = 0;        // last step whose records are kept
  std::int64_t best_after = 0;  // see CutMetrics
};

void NoteStep(std::int64_t step, History& history) {
  if (step > history.next_step) history.missing.emplace_back(history.next_step, step - 1);
  history.next_step = std::max(history.next_step, step + 1);
}

// True if `line` is a record that a run resumed after `steps.last` keeps; notes its facts in
// `history`. A line whose step, kind or other members have the wrong type is no record, except that
// the loss may be null (after a divergence).
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
  // The run branched off here: earlier steps are in another folder.
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

// Parses a line that contains "`word`" in quotes; null for any other line.
nlohmann::json RecordWith(const std::string& word, std::string_view line) {
  if (line.find('"' + word + '"') == std::string_view::npos) return {};
  const auto json = deck::TryParseJson(line, kMaxLineBytes);
  return json && json->is_object() ? *json : nlohmann::json();
}

bool IsDone(std::string_view line) {
  const char* const done = NameOf(Record::Kind::kDone);
  const nlohmann::json json = RecordWith(done, line);
  return json.is_object() && json.value("kind", nlohmann::json()) == done;
}

// The step of `line` if it records the event `event` (a published checkpoint); else nullopt.
std::optional<std::int64_t> CheckpointIn(std::string_view line, const std::string& event) {
  const nlohmann::json json = RecordWith(event, line);
  if (!json.is_object() || json.value("kind", nlohmann::json()) != "event" ||
      json.value("event", nlohmann::json()) != event) {
    return std::nullopt;
  }
  return deck::WholeNumber(json.value("step", nlohmann::json()));
}

// Calls use(line, whole) for each line of a file, without its newline. `whole` is false for a line
// longer than a record, of which only the start is passed, and for a last line without a newline.
// Needs memory for one record only.
template <typename Use>
void ForEachLine(const std::string& path, Use&& use) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> buffer(kMaxLineBytes + 2);  // a line, its newline, a final zero
  while (file) {
    file.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const auto taken = static_cast<std::size_t>(file.gcount());
    if (file.bad()) break;
    if (file.eof()) {  // the last line has no newline
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

// Reads the lines of a file from the last to the first, block by block.
class LinesFromTheEnd {
 public:
  explicit LinesFromTheEnd(const std::string& path)
      : path_(path), file_(path, std::ios::binary | std::ios::ate), block_(kBlock, '\0') {
    begin_ = file_ ? static_cast<std::int64_t>(file_.tellg()) : -1;
    if (begin_ < 0) Fail();
  }

  // Calls found(line) for each whole line of at most kMaxLineBytes, the last one first, until it
  // returns true. Needs memory for one block and one record.
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

  // Completes the line that begins with `start`; true if the search ends with it.
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
  std::int64_t begin_;  // file offset; everything from here on has been read
  std::string rest_;    // the end of the line whose start is not yet read
  bool whole_ = false;  // the line in rest_ ends with a newline
  bool too_long_ = false;
};

// The value of read(line) for the last record that has one; else nullopt. Skips step records.
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
  // A pipe or a device holds no records. Links are followed, as AppendFile does.
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found) NoteStep(resume_step + 1, history);
  if (type != std::filesystem::file_type::regular) return history;
  const std::string target = std::filesystem::canonical(path, error).string();
  if (error) throw RunError(fmt::format("{}: cannot be read: {}", path, error.message()));
  std::vector<bool> kept;  // [lines]
  ForEachLine(target, [&](std::string_view line, bool whole) {
    kept.push_back(whole && Keeps(line, {resume_step, best_after}, history));
  });
  NoteStep(resume_step + 1, history);
  if (std::find(kept.begin(), kept.end(), false) == kept.end()) return history;
  Replacement file(target, DraftName(target));
  constexpr std::size_t kBlock = std::size_t{1} << 20;  // bytes per write
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
  const auto done = [](std::string_view line) {
    return IsDone(line) ? std::optional<bool>(true) : std::nullopt;
  };
  return LastRecord(folder, done).has_value();
}

std::optional<std::int64_t> LastCheckpoint(const std::string& folder, const std::string& event) {
  return LastRecord(folder, [&](std::string_view line) { return CheckpointIn(line, event); });
}

// Turns records into lines of metrics.jsonl.

namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

constexpr std::string_view kStepStart = "{\"kind\":\"step\",\"step\":";

// Calls visit(name, value) for each member of a step's line after `kind` and `step`, in the order
// of the line. Measured times and speeds are passed as floats.
template <typename Visit>
void ForStepMembers(const Record& record, Visit&& visit) {
  const auto measured = [&](std::string_view name, double value) {
    visit(name, static_cast<float>(value));
  };
  visit("epoch", record.epoch);
  visit("tokens", record.tokens);
  visit("loss", record.loss);
  visit("perplexity", Perplexity(record.loss));
  visit("learning_rate", record.learning_rate);
  visit("grad_norm", record.grad_norm);
  measured("step_seconds", record.step_seconds);
  measured("tokens_per_second", record.tokens_per_second);
  measured("flops_per_second", record.flops_per_second);
  measured("roof_fraction", record.roof_fraction);
  measured("seconds_compute", record.seconds_compute);
  measured("seconds_exposed_communication", record.seconds_exposed_communication);
  measured("seconds_bubble", record.seconds_bubble);
  measured("seconds_data", record.seconds_data);
  measured("seconds_checkpoint", record.seconds_checkpoint);
  visit("bad_steps", record.bad_steps);
}

// Takes `start` off the front of `text`; false if it is not there.
bool Skip(std::string_view& text, std::string_view start) {
  if (!text.starts_with(start)) return false;
  text.remove_prefix(start.size());
  return true;
}

// Takes a number off the front of `text`; false if there is none.
template <typename Number>
bool Take(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

void AddMeasures(Json& json, const Record& record) {
  json["flops_per_second"] = record.flops_per_second;
  json["roof_fraction"] = record.roof_fraction;
  json["memory_bytes"] = record.memory_bytes;
  json["seconds_compute"] = record.seconds_compute;
  json["seconds_exposed_communication"] = record.seconds_exposed_communication;
  json["seconds_bubble"] = record.seconds_bubble;
  json["seconds_data"] = record.seconds_data;
  json["seconds_checkpoint"] = record.seconds_checkpoint;
  json["slowest_rank"] = nullptr;
  if (record.slowest_rank >= 0) json["slowest_rank"] = record.slowest_rank;
  json["seconds_slowest"] = record.seconds_slowest;
  json["bad_steps"] = record.bad_steps;
  for (const auto& [name, tokens] : record.sources) json["sources"][name] = tokens;
}

void AddSpread(Json& json, const std::string& name, const Spread& spread) {
  json[name + "_min"] = spread.min;
  json[name + "_max"] = spread.max;
  json[name + "_mean"] = spread.mean;
}

}  // namespace

const char* NameOf(Record::Kind kind) {
  constexpr std::array kNames = {"step", "valid", "valid_other", "test", "done"};
  return kNames.at(static_cast<std::size_t>(kind));
}

double Perplexity(double loss) {
  constexpr double kLargest = 709.0;  // exp(709) = 8.2e307 is still a double
  return loss > kLargest ? std::exp(kLargest) : std::exp(loss);
}

void AppendStepLine(const Record& record, std::string& text) {
  fmt::format_to(std::back_inserter(text), "{}{}", kStepStart, record.step);
  ForStepMembers(record, [&text](std::string_view name, auto value) {
    fmt::format_to(std::back_inserter(text), ",\"{}\":", name);
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(text), "{}", value);
    } else {
      text += "null";
    }
  });
  text += "}\n";
}

std::optional<StepFacts> ReadStepLine(std::string_view line) {
  static const Record any;
  StepFacts facts;
  if (!Skip(line, kStepStart) || !Take(line, facts.step)) return std::nullopt;
  bool good = true;
  ForStepMembers(any, [&](std::string_view name, auto) {
    double value = NAN;
    good = good && Skip(line, ",\"") && Skip(line, name) && Skip(line, "\":") &&
           (Skip(line, "null") || (Take(line, value) && std::isfinite(value)));
    if (good && name == "loss" && std::isfinite(value)) facts.loss = value;
  });
  if (!good || line != "}") return std::nullopt;
  return facts;
}

std::string ToJsonLine(const Record& record) {
  if (record.kind == Record::Kind::kStep) {
    std::string text;
    AppendStepLine(record, text);
    return text;
  }
  Json json;
  json["kind"] = NameOf(record.kind);
  if (!record.set.empty()) json["set"] = record.set;
  if (record.windows > 0) json["windows"] = record.windows;
  json["step"] = record.step;
  json["epoch"] = record.epoch;
  json["tokens"] = record.tokens;
  json["loss"] = record.loss;
  json["perplexity"] = Perplexity(record.loss);
  json["learning_rate"] = record.learning_rate;
  json["grad_norm"] = record.grad_norm;
  json["step_seconds"] = record.step_seconds;
  json["tokens_per_second"] = record.tokens_per_second;
  AddMeasures(json, record);
  for (const auto& [name, number] : record.more) json[name] = number;
  return Line(json);
}

std::string ToJsonLine(const Interval& interval) {
  const Record& last = interval.last;
  Json json;
  json["kind"] = "interval";
  json["step"] = last.step;
  json["steps"] = interval.steps;
  json["epoch"] = last.epoch;
  json["tokens"] = last.tokens;
  AddSpread(json, "loss", interval.loss);
  AddSpread(json, "grad_norm", interval.grad_norm);
  AddSpread(json, "step_seconds", interval.step_seconds);
  AddSpread(json, "tokens_per_second", interval.tokens_per_second);
  AddMeasures(json, last);
  json["memory_rank"] = nullptr;
  if (last.memory_rank >= 0) json["memory_rank"] = last.memory_rank;
  json["memory_host"] = last.memory_host;
  json["slowest_host"] = last.slowest_host;
  for (const auto& [name, number] : last.more) json[name] = number;
  return Line(json);
}

std::string ToJsonLine(const Event& event) {
  Json json;
  json["kind"] = "event";
  json["event"] = event.name;
  json["step"] = event.step;
  json["rank"] = event.rank;
  json["host"] = event.host;
  json["text"] = event.text;
  for (const auto& [name, number] : event.numbers) json[name] = number;
  return Line(json);
}

// MetricsSink: when records are written, and what happens if that fails.

constexpr std::chrono::seconds kFlushEvery{2};
constexpr std::size_t kFlushBytes = std::size_t{64} << 10;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // limit of the buffer while writing fails

MetricsSink::MetricsSink(const std::string& path, bool truncate)
    : file_(std::make_shared<AppendFile>(path, truncate)), flushed_(Clock::now()) {
  buffer_.reserve(kFlushBytes);
}

MetricsSink::~MetricsSink() {
  if (file_ && !buffer_.empty() && !cut_) file_->Append(buffer_);
}

void MetricsSink::Step(const Record& record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  AppendStepLine(record, buffer_);
  step_ = record.step;
  WriteIfDue();
}

void MetricsSink::Interval(const report::Interval& interval) {
  const std::lock_guard<std::mutex> lock(mutex_);
  buffer_ += ToJsonLine(interval);
  WriteIfDue();
}

void MetricsSink::Evaluation(const Record& record) { Write(ToJsonLine(record), record.step); }

void MetricsSink::Happened(const Event& event) { Write(ToJsonLine(event), event.step); }

void MetricsSink::Done(const Summary& summary) {
  Write(summary.done ? ToJsonLine(summary.last) : std::string(), summary.last.step);
}

std::string MetricsSink::Renew() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ == nullptr || !file_->Gone()) return {};
  file_ = std::make_shared<AppendFile>(file_->Path(), false);
  return file_->Path();
}

void MetricsSink::Flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  WriteAll();
}

// Syncs without the lock: training steps do not wait for a slow disk.
void MetricsSink::Sync() {
  std::shared_ptr<AppendFile> file;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    WriteAll();
    file = file_;
  }
  if (file) file->Sync();
}

History MetricsSink::CutTo(std::int64_t step, std::int64_t best_after) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ == nullptr) return {};
  try {
    WriteAll();
  } catch (const Error&) {
    KeepLines(buffer_, step);
  }
  if (cut_) step = std::min(step, cut_->step);
  cut_ = Cut{step, best_after};
  return CutFile();
}

// If the cut fails (a full disk), the file keeps its outdated records, and nothing is appended
// until a later cut succeeds.
History MetricsSink::CutFile() {
  const std::string path = file_->Path();
  file_.reset();  // the file is replaced
  try {
    const History kept = CutMetrics(path, cut_->step, cut_->best_after);
    cut_.reset();
    file_ = std::make_shared<AppendFile>(path, false);
    return kept;
  } catch (const Error&) {
    if (file_ == nullptr) file_ = std::make_shared<AppendFile>(path, false);
    failing_ = true;
    DropOverflow();
    throw;
  }
}

void MetricsSink::Write(const std::string& line, std::int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  buffer_ += line;
  step_ = step;
  WriteAll();
}

void MetricsSink::WriteIfDue() {
  const bool much = buffer_.size() >= kFlushBytes && !failing_;
  if (much || Clock::now() - flushed_ >= kFlushEvery) WriteAll();
}

void MetricsSink::WriteAll() {
  flushed_ = Clock::now();
  if (file_ == nullptr) buffer_.clear();
  if (buffer_.empty()) return;
  if (cut_) CutFile();
  std::string told;
  if (lost_ > 0) {
    told = ToJsonLine(Event{.name = "records lost",
                            .step = step_,
                            .rank = 0,
                            .host = {},
                            .text = "earlier records could not be written",
                            .numbers = {{"records", static_cast<double>(lost_)}}});
  }
  const std::string reason = file_->Append(told.empty() ? buffer_ : buffer_ + told);
  failing_ = !reason.empty();
  if (failing_) {
    DropOverflow();
    throw RunError(fmt::format("{}: cannot be written: {}", file_->Path(), reason));
  }
  lost_ = 0;
  buffer_.clear();
}

// Drops the oldest records, keeping the latest half of kMostBytes.
void MetricsSink::DropOverflow() {
  if (buffer_.size() <= kMostBytes) return;
  const std::size_t end = buffer_.find('\n', buffer_.size() - kMostBytes / 2) + 1;
  lost_ += std::count(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(end), '\n');
  buffer_.erase(0, end);
}

}  // namespace trireme::report
