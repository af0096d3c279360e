// RunState: records of steps and intervals are read by a few of their numbers, the last one of each
// kind as a whole when it is shown; the others as they come.
#include "run_state.hpp"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "followed_file.hpp"
#include "plain_text.hpp"
#include "record_numbers.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::tools {

namespace {

constexpr std::string_view kStepLine = R"({"kind":"step",)";
constexpr std::string_view kIntervalLine = R"({"kind":"interval",)";
constexpr std::int64_t kSpeedSteps = 50;  // at least, of which the speed is the mean
constexpr std::size_t kMostSets = 16;     // of validation that are told apart
constexpr double kLargestStep = 1e15;

std::optional<std::int64_t> AsStep(double value) {
  if (!(value >= 0 && value < kLargestStep)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

nlohmann::json Parse(const std::string& line) {
  auto record = deck::TryParseJson(line, FollowedFile::kMaxLine);
  return record && record->is_object() ? *std::move(record) : nlohmann::json::object();
}

}  // namespace

void RunState::Take(std::string_view line) {
  const bool taken = (line.starts_with(kStepLine) && TakeStep(line)) ||
                     (line.starts_with(kIntervalLine) && TakeInterval(line)) || TakeOther(line);
  ++(taken ? records_ : damaged_);
}

bool RunState::TakeStep(std::string_view line) {
  if (!line.ends_with('}')) return false;
  const auto step = NumberAfter(line, R"("step":)"), loss = NumberAfter(line, R"("loss":)"),
             seconds = NumberAfter(line, R"("step_seconds":)"),
             speed = NumberAfter(line, R"("tokens_per_second":)"),
             checkpoint = NumberAfter(line, R"("seconds_checkpoint":)");
  if (!step || !loss || !seconds || !speed) return false;
  const auto at = AsStep(*step);
  if (!at) return false;
  // Records of older versions stand for all steps since the one before.
  const std::int64_t count = step_ > 0 && *at > step_ ? *at - step_ : 1;
  losses_.Add(*at, *loss);
  step_ = *at;
  last_step_ = line;
  if (*seconds > 0) {
    const double all = *seconds * static_cast<double>(count);
    recent_[next_recent_] = {*at, count, all, std::isfinite(*speed) ? *speed * all : 0};
    next_recent_ = (next_recent_ + 1) % kRecent;
    step_seconds_ += all;
    const double saved = checkpoint.value_or(0);
    if (saved > 0) other_seconds_ += saved * static_cast<double>(count);
  }
  done_ = stopped_ = false;
  return true;
}

bool RunState::TakeInterval(std::string_view line) {
  if (!line.ends_with('}') || !NumberAfter(line, R"("step":)")) return false;
  last_interval_ = line;
  ++intervals_;
  const double joules = NumberAfter(line, R"("joules":)").value_or(NAN);
  if (std::isfinite(joules)) {
    joules_ += joules;
    ++intervals_with_joules_;
  }
  return true;
}

bool RunState::TakeOther(std::string_view line) {
  const auto record = deck::TryParseJson(line, FollowedFile::kMaxLine);
  if (!record || !record->is_object()) return false;
  const std::string kind = TextOf(*record, "kind");
  const auto step = AsStep(NumberOf(*record, "step"));
  if (kind.empty() || !step) return false;
  // A step or an interval that another program has rewritten, with blanks or in another order.
  if (kind == "step" || kind == "interval") {
    nlohmann::ordered_json ours = {{"kind", kind}};
    ours.update(*record);
    const std::string text = ours.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return kind == "step" ? TakeStep(text) : TakeInterval(text);
  }
  if (kind == "valid" || kind == "valid_other") TakeValidation(*record, *step);
  if (kind == "test") test_ = NumberOf(*record, "loss");
  if (kind == "event") TakeEvent(*record, *step);
  if (kind == "done") done_ = true;
  return true;
}

void RunState::TakeValidation(const nlohmann::json& record, std::int64_t step) {
  const bool decides = TextOf(record, "kind") == "valid";
  const std::string name = OneLine(TextOf(record, "set"), 40);
  if (!decides && others_.size() == kMostSets && !others_.contains(name)) return;
  Validation& set = decides ? decider_ : others_[name];
  set.last = NumberOf(record, "loss");
  set.last_step = step;
  if (std::isnan(set.best) || set.last < set.best) {
    set.best = set.last;
    set.best_step = step;
  }
  const double seconds = NumberOf(record, "step_seconds");
  if (seconds > 0) other_seconds_ += seconds;
}

void RunState::TakeEvent(const nlohmann::json& record, std::int64_t step) {
  const std::string name = TextOf(record, "event");
  events_.push_front({step, OneLine(name, 40), OneLine(TextOf(record, "text"))});
  if (events_.size() > kEvents) events_.pop_back();
  stopped_ = name == "stop";
}

// The last records that cover enough steps for a mean.
RunState::Steps RunState::LastSteps() const {
  Steps sum;
  for (std::size_t back = 1; back <= kRecent && sum.count < kSpeedSteps; ++back) {
    const Steps& record = recent_[(next_recent_ + kRecent - back) % kRecent];
    if (record.count == 0) break;
    sum.count += record.count;
    sum.seconds += record.seconds;
    sum.tokens += record.tokens;
  }
  return sum;
}

Glance RunState::Look(const Schedule& schedule) const {
  Glance glance;
  const nlohmann::json step = Parse(last_step_), interval = Parse(last_interval_);
  const auto newer = [&](const char* name) {  // of an interval, or of a step of older versions
    const double value = NumberOf(interval, name);
    return std::isnan(value) ? NumberOf(step, name) : value;
  };
  glance.step = step_;
  glance.epoch = NumberOf(step, "epoch");
  glance.loss = NumberOf(step, "loss");
  glance.learning_rate = NumberOf(step, "learning_rate");
  glance.grad_norm = NumberOf(step, "grad_norm");
  glance.loss_least = NumberOf(interval, "loss_min");
  glance.loss_most = NumberOf(interval, "loss_max");
  glance.roof_fraction = newer("roof_fraction");
  const double bad = NumberOf(step, "bad_steps");
  glance.bad_steps = std::isnan(bad) ? 0 : bad;
  glance.memory_bytes = newer("memory_bytes");
  if (const double rank = NumberOf(interval, "memory_rank"); rank >= 0) {
    glance.memory_place = "rank " + std::to_string(static_cast<std::int64_t>(rank));
    const std::string host = OneLine(TextOf(interval, "memory_host"), 64);
    if (!host.empty()) glance.memory_place += " on " + host;
  }
  if (intervals_with_joules_ > 0) glance.joules = joules_;
  glance.some_joules = intervals_with_joules_ < intervals_;
  glance.joules_per_token = NumberOf(interval, "joules_per_token");
  glance.watts_per_node = NumberOf(interval, "watts_per_node");
  glance.gpu_utilisation = NumberOf(interval, "gpu_utilisation");
  glance.gpu_memory_bytes = NumberOf(interval, "gpu_memory_bytes");

  const Steps last = LastSteps();
  if (last.seconds > 0) {
    glance.tokens_per_second = last.tokens / last.seconds;
    glance.step_seconds = last.seconds / static_cast<double>(last.count);
  }
  glance.total_steps = schedule.steps;
  if (schedule.steps == 0 && schedule.epochs > 0 && glance.epoch > 0) {
    const double total = static_cast<double>(step_) * schedule.epochs / glance.epoch;
    glance.total_steps = AsStep(std::round(total)).value_or(0);
    glance.about = true;
  }
  if (schedule.stop_at > 0 && (glance.total_steps == 0 || schedule.stop_at < glance.total_steps)) {
    glance.total_steps = schedule.stop_at;
    glance.about = false;
  }
  if (glance.total_steps > 0 && step_seconds_ > 0) {
    const double pace = glance.step_seconds * (1 + other_seconds_ / step_seconds_);
    const auto steps = std::max<std::int64_t>(glance.total_steps - step_, 0);
    glance.seconds_left = pace * static_cast<double>(steps);
  }
  return glance;
}

Schedule ReadSchedule(const std::string& deck) {
  Schedule schedule;
  std::istringstream lines(deck);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, equals;
    words >> key;
    if (key.starts_with('[')) section = key;
    double value = 0;
    if (section != "[schedule]" || !(words >> equals >> value) || equals != "=") continue;
    if (key == "steps") schedule.steps = AsStep(value).value_or(0);
    if (key == "epochs" && value > 0) schedule.epochs = value;
    if (key == "stop_at") schedule.stop_at = AsStep(value).value_or(0);
  }
  return schedule;
}

}  // namespace trireme::tools
