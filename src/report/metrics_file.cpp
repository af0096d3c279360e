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
#include <type_traits>

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
  const std::string kind = deck::TextOf(*json, "kind");
  const auto at = deck::WholeNumber(json->value("step", nlohmann::json()));
  if (kind.empty() || !at || *at > steps.last || kind == NameOf(Record::Kind::kDone)) return false;
  if (kind == NameOf(Record::Kind::kStep)) NoteStep(*at, history);
  // The run branched off here: earlier steps are in another folder.
  if (history.next_step == 1 && json->value("event", nlohmann::json()) == kBranchedOff) {
    history.next_step = *at + 1;
  }
  const auto loss = json->find("loss");
  if (loss == json->end() || !loss->is_number()) return true;
  const auto value = loss->get<double>();
  if (kind == NameOf(Record::Kind::kStep) && !history.first_loss) history.first_loss = value;
  if (kind == NameOf(Record::Kind::kValid) && *at > steps.best_after &&
      value < history.best_valid.value_or(INFINITY)) {
    history.best_valid = value;
    history.best_valid_step = *at;
  }
  return true;
}

// Parses a line that contains "`word`" in quotes; empty for any other line.
nlohmann::json RecordWith(const std::string& word, std::string_view line) {
  if (line.find('"' + word + '"') == std::string_view::npos) return nlohmann::json::object();
  const auto json = deck::TryParseJson(line, kMaxLineBytes);
  return json && json->is_object() ? *json : nlohmann::json::object();
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

// Calls found(line) for each whole line of at most kMaxLineBytes, the last one first, until it
// returns true. Reads the file block by block; needs memory for one block and one record.
template <typename Found>
void SearchFromTheEnd(const std::string& path, Found&& found) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::int64_t begin = file ? static_cast<std::int64_t>(file.tellg()) : -1;  // bytes not yet read
  std::string block, rest;               // rest: the end of the line whose start is not yet read
  bool whole = false, too_long = false;  // whole: the line in `rest` ends with a newline
  const auto keep = [&](std::string_view start) {
    too_long = too_long || std::ssize(rest) + std::ssize(start) > kMaxLineBytes;
    rest.insert(0, start);
    if (too_long) rest.clear();
  };
  // Puts the line's beginning before `rest` and calls `found`; true if the search ends here.
  const auto ends = [&](std::string_view start) {
    keep(start);
    const bool take = whole && !too_long && found(std::string_view(rest));
    rest.clear();
    whole = true;
    too_long = false;
    return take;
  };
  while (begin > 0) {
    block.resize(static_cast<std::size_t>(std::min(begin, kBlock)));
    begin -= std::ssize(block);
    if (!file.seekg(begin).read(block.data(), std::ssize(block))) begin = -1;
    std::string_view left = block;
    for (std::size_t at = left.rfind('\n'); begin >= 0 && at != std::string_view::npos;
         at = left.rfind('\n')) {
      if (ends(left.substr(at + 1))) return;
      left = left.substr(0, at);
    }
    keep(left);
  }
  if (begin < 0) throw RunError(path + ": cannot be read");
  ends({});
}

// The value of read(line) for the last record that has one; else nullopt. Skips step records.
template <typename Read>
auto LastRecord(const std::string& folder, Read&& read) -> decltype(read(std::string_view())) {
  const std::string path = folder + "/metrics.jsonl";
  std::error_code ignored;
  decltype(read(std::string_view())) last;
  if (!std::filesystem::is_regular_file(path, ignored)) return last;
  SearchFromTheEnd(path, [&](std::string_view line) {
    if (!line.starts_with("{\"kind\":\"step\"")) last = read(line);
    return last.has_value();
  });
  return last;
}

// Drops the lines of `text` that CutMetrics would cut. text: whole lines.
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

}  // namespace

History CutMetrics(const std::string& path, std::int64_t resume_step, std::int64_t best_after) {
  History history;
  std::error_code error;
  // A pipe or a device holds no records. Links are followed, as AppendFile does.
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found) NoteStep(resume_step + 1, history);
  if (type != std::filesystem::file_type::regular) return history;
  const std::string target = std::filesystem::canonical(path, error).string();
  if (error) throw RunError(fmt::format("{}: cannot be read: {}", path, error.message()));
  std::vector<bool> kept;  // [lines]: whether the line is kept
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
  const char* const done = NameOf(Record::Kind::kDone);
  const auto read = [&](std::string_view line) {
    const bool is = RecordWith(done, line).value("kind", nlohmann::json()) == done;
    return is ? std::optional(true) : std::nullopt;
  };
  return LastRecord(folder, read).has_value();
}

std::optional<std::int64_t> LastCheckpoint(const std::string& folder, const std::string& event) {
  return LastRecord(folder, [&](std::string_view line) {
    const nlohmann::json json = RecordWith(event, line);
    const bool is = json.value("kind", nlohmann::json()) == "event" &&
                    json.value("event", nlohmann::json()) == event;
    return is ? deck::WholeNumber(json.value("step", nlohmann::json())) : std::nullopt;
  });
}

// Turns records into lines of metrics.jsonl.

namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json RankOrNull(int rank) { return rank >= 0 ? Json(rank) : Json(); }

constexpr std::string_view kStepStart = "{\"kind\":\"step\",\"step\":";

// Call visit(name, value) for each member of a record in the order of its line: first ForProgress,
// for those after `kind` and `step`, then ForMeasures. Times and speeds have type Measured: float
// in the lines of steps, else double.
template <typename Measured, typename Visit>
void ForProgress(const Record& record, Visit&& visit) {
  visit("epoch", record.epoch);
  visit("tokens", record.tokens);
  visit("loss", record.loss);
  visit("perplexity", Perplexity(record.loss));
  visit("learning_rate", record.learning_rate);
  visit("grad_norm", record.grad_norm);
  visit("step_seconds", static_cast<Measured>(record.step_seconds));
  visit("tokens_per_second", static_cast<Measured>(record.tokens_per_second));
}
// Lines of steps have no members about ranks.
template <typename Measured, typename Visit>
void ForMeasures(const Record& record, Visit&& visit) {
  constexpr bool kRanks = std::is_same_v<Measured, double>;
  visit("flops_per_second", static_cast<Measured>(record.flops_per_second));
  visit("roof_fraction", static_cast<Measured>(record.roof_fraction));
  if constexpr (kRanks) visit("memory_bytes", record.memory_bytes);
  visit("seconds_compute", static_cast<Measured>(record.seconds_compute));
  visit("seconds_exposed_communication",
        static_cast<Measured>(record.seconds_exposed_communication));
  visit("seconds_bubble", static_cast<Measured>(record.seconds_bubble));
  visit("seconds_data", static_cast<Measured>(record.seconds_data));
  visit("seconds_checkpoint", static_cast<Measured>(record.seconds_checkpoint));
  if constexpr (kRanks) visit("slowest_rank", RankOrNull(record.slowest_rank));
  if constexpr (kRanks) visit("seconds_slowest", record.seconds_slowest);
  visit("bad_steps", record.bad_steps);
}
template <typename Visit>
void ForStepMembers(const Record& record, Visit&& visit) {
  ForProgress<float>(record, visit);
  ForMeasures<float>(record, visit);
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

auto Into(Json& json) {
  return [&json](const char* name, const auto& value) { json[name] = value; };
}

void AddMeasures(Json& json, const Record& record) {
  ForMeasures<double>(record, Into(json));
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
  if (record.averaged) json["averaged"] = true;
  json["step"] = record.step;
  ForProgress<double>(record, Into(json));
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
  json["memory_rank"] = RankOrNull(last.memory_rank);
  json["memory_host"] = last.memory_host;
  json["slowest_host"] = last.slowest_host;
  for (const auto& [name, number] : last.more) json[name] = number;
  return Line(json);
}

std::string ToJsonLine(const Event& event) {
  Json json = {{"kind", "event"},    {"event", event.name}, {"step", event.step},
               {"rank", event.rank}, {"host", event.host},  {"text", event.text}};
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
  const Event lost{.name = "records lost",
                   .step = step_,
                   .text = "earlier records could not be written",
                   .numbers = {{"records", static_cast<double>(lost_)}}};
  const std::string reason = file_->Append(lost_ == 0 ? buffer_ : buffer_ + ToJsonLine(lost));
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
