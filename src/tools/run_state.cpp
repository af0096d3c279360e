// RunState: of most records only a few numbers are extracted; the last record of each kind is kept
// as text and parsed when it is shown.
#include "run_state.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <limits>
#include <sstream>

#include "trireme/base/json.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tools {

using deck::TextOf;

// FollowedFile: checks the file's name, its size and the last bytes read, then reads the new bytes.

static constexpr std::size_t kKnownBytes =
    256;  // enough to detect a file that was rewritten in place

FollowedFile::State FollowedFile::Fail(int error) {
  file_.reset();
  if (error == ENOENT || error == ENOTDIR) return State::kMissing;
  reason_ = ErrorText(error);
  // ESTALE: a network file system lost the file behind the descriptor; opening by name works.
  return error == ESTALE ? State::kMissing : State::kUnreadable;
}

void FollowedFile::BeginAnew(const Visit& visit) {
  const bool anything = offset_ > 0;
  offset_ = 0;
  last_bytes_.clear();
  begun_.clear();
  begun_is_long_ = false;
  if (anything) visit.restart();
}

// Whether the file still holds, before offset_, the bytes that were read from it.
bool FollowedFile::Continues() const {
  std::string now(last_bytes_.size(), '\0');
  const auto from = offset_ - static_cast<std::int64_t>(now.size());
  const std::int64_t got = ReadAt(file_->Get(), now.data(), std::ssize(now), from);
  return got == static_cast<ssize_t>(now.size()) && now == last_bytes_;
}

// Opens the file that has the name now; false with errno set if that fails.
bool FollowedFile::Open(const Visit& visit) {
  struct stat found {};
  if (stat(path_.c_str(), &found) != 0) return false;
  const auto known = [&] { return found.st_dev == device_ && found.st_ino == inode_; };
  if (!file_ || !known()) {
    if (!S_ISREG(found.st_mode)) {
      errno = S_ISDIR(found.st_mode) ? EISDIR : EINVAL;
      return false;
    }
    Descriptor file(path_, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (!file.Valid() || fstat(file.Get(), &found) != 0) return false;
    file_.emplace(std::move(file));
    if (!known()) BeginAnew(visit);
    device_ = found.st_dev;
    inode_ = found.st_ino;
  }
  size_ = found.st_size;
  modified_ = found.st_mtime;
  return true;
}

void FollowedFile::Take(std::string_view bytes, const Visit& visit) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    begun_is_long_ = begun_is_long_ || std::ssize(begun_) + std::ssize(piece) > kMaxLine;
    if (begun_is_long_) begun_.clear();
    if (!begun_is_long_ && (end == std::string_view::npos || !begun_.empty())) begun_ += piece;
    if (end == std::string_view::npos) return;
    visit.line(begun_is_long_ ? std::string_view() : begun_.empty() ? piece : begun_);
    begun_.clear();
    begun_is_long_ = false;
    bytes.remove_prefix(end + 1);
  }
}

FollowedFile::State FollowedFile::Read(const Visit& visit) {
  if (!Open(visit)) return Fail(errno);
  if (size_ < offset_ || !Continues()) BeginAnew(visit);
  if (size_ == offset_) return State::kCaughtUp;
  buffer_.resize(static_cast<std::size_t>(std::min(size_ - offset_, kReadBytes)));
  const std::int64_t got = ReadAt(file_->Get(), buffer_.data(), std::ssize(buffer_), offset_);
  if (got == 0 && errno != 0) return Fail(errno);
  const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(got));
  offset_ += got;
  last_bytes_ += bytes.substr(bytes.size() - std::min(bytes.size(), kKnownBytes));
  if (last_bytes_.size() > kKnownBytes) last_bytes_.erase(0, last_bytes_.size() - kKnownBytes);
  Take(bytes, visit);
  return got > 0 && offset_ < size_ ? State::kBehind : State::kCaughtUp;
}

double FollowedFile::Fraction() const {
  return size_ > 0 ? static_cast<double>(offset_) / static_cast<double>(size_) : 1;
}

// KnownLines: hashes of the lines, in their order.

bool KnownLines::IsNew(std::string_view line) {
  const std::uint64_t hash = std::hash<std::string_view>()(line);
  if (again_) {
    const auto begin = hashes_.begin() + static_cast<std::ptrdiff_t>(next_);
    const auto found = std::find(begin, hashes_.end(), hash);
    if (found != hashes_.end()) {
      // Old lines between the last match and this one are no longer in the file.
      const auto after = hashes_.erase(begin, found) + 1;
      next_ = static_cast<std::size_t>(after - hashes_.begin());
      return false;
    }
    hashes_.resize(next_);
    again_ = false;
  }
  hashes_.push_back(hash);
  return true;
}

// OneLine and Wide: deal with characters that control a terminal.

namespace {

constexpr const char* kEllipsis = "\xE2\x80\xA6";

// First character of a text that is not empty; U+FFFD of one byte if it is not valid UTF-8.
Character First(std::string_view text) {
  return FirstCharacter(text).value_or(Character{kReplacementCode, 1});
}

// Whether the character controls a terminal, or changes the order in which text is shown.
bool Controls(char32_t value) {
  const auto within = [value](char32_t first, char32_t last) {
    return value >= first && value <= last;
  };
  return value < 0x20 || within(0x7F, 0x9F) || value == 0xAD || value == 0x61C ||
         within(0x200B, 0x200F) || within(0x2028, 0x202E) || within(0x2060, 0x206F) ||
         value == 0xFEFF || within(0xFFF9, 0xFFFB) || within(0xE0000, 0xE0FFF);
}

}  // namespace

std::string OneLine(std::string_view text, std::size_t most) {
  std::string line;
  for (std::size_t count = 0; !text.empty(); ++count) {
    const Character character = First(text);
    if (count + 1 == most && character.bytes < text.size()) return line + kEllipsis;
    const std::string_view bytes = text.substr(0, character.bytes);
    if (bytes == "\n" || bytes == "\t" || bytes == "\r") {
      line += ' ';
    } else if (character.code == kReplacementCode || Controls(character.code)) {
      line += kReplacementCharacter;
    } else {
      line += bytes;
    }
    text.remove_prefix(character.bytes);
  }
  return line;
}

std::wstring Wide(std::string_view text) {
  std::wstring wide;
  while (!text.empty()) {
    const Character character = First(text);
    wide += static_cast<wchar_t>(character.code);
    text.remove_prefix(character.bytes);
  }
  return wide;
}

// Curve: buckets of equally many steps; their width doubles when there are too many of them.

namespace {

constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::string_view kAscii = "_.-=+*%#";

}  // namespace

void Curve::Add(std::int64_t step, double value) {
  while (step <= last_ && !buckets_.empty() && buckets_.back().number >= step / width_) {
    buckets_.pop_back();
  }
  last_ = step;
  if (buckets_.empty() || buckets_.back().number != step / width_) {
    buckets_.push_back({.number = step / width_});
    if (buckets_.size() > kMostBuckets) Halve();
  }
  Bucket& bucket = buckets_.back();
  if (!std::isfinite(value)) {
    bucket.bad = true;
    return;
  }
  bucket.sum += value;
  ++bucket.count;
}

void Curve::Halve() {
  width_ *= 2;
  std::vector<Bucket> half;
  half.reserve(kMostBuckets + 1);
  for (Bucket bucket : buckets_) {
    bucket.number /= 2;
    if (half.empty() || half.back().number != bucket.number)
      half.push_back({.number = bucket.number});
    half.back() += bucket;
  }
  buckets_ = std::move(half);
}

std::string Curve::Bars(int columns, bool blocks) const {
  if (buckets_.empty() || columns <= 0) return {};
  const std::size_t used = std::min(static_cast<std::size_t>(columns), buckets_.size());
  std::vector<Bucket> bars(used);
  for (std::size_t i = 0; i < buckets_.size(); ++i) bars[i * used / buckets_.size()] += buckets_[i];
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const Bucket& bar : bars) {
    if (bar.count == 0) continue;
    least = std::min(least, bar.Mean());
    most = std::max(most, bar.Mean());
  }
  std::string text;
  for (const Bucket& bar : bars) {
    if (bar.bad) {
      text += '!';
      continue;
    }
    const double height = most > least ? (bar.Mean() - least) / (most - least) : 0;
    const auto level = static_cast<std::size_t>(std::clamp(height * 8, 0.0, 7.0));
    text += blocks ? kBlocks[level] : std::string(1, kAscii[level]);
  }
  return text;
}

namespace {

// Number `name` of a parsed record; NaN if it is missing, null or not a number.
double NumberOf(const nlohmann::json& record, const char* name) {
  const auto member = record.find(name);
  return member != record.end() && member->is_number() ? member->get<double>() : NAN;
}

constexpr std::string_view kStepLine = R"({"kind":"step",)";
constexpr std::string_view kIntervalLine = R"({"kind":"interval",)";
constexpr std::int64_t kSpeedSteps = 50;  // the speed shown is the mean over at least so many steps
constexpr std::size_t kMostSets = 16;     // validation sets that are kept apart
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
  // In records of older versions a record stands for all steps since the record before.
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
  // Another program may have added blanks to the record or reordered it: restore our form.
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

// Sum of the last records, as many as it takes to cover kSpeedSteps steps.
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
  const auto newer = [&](const char* name) {  // the interval's value or, in older files, the step's
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

// RecordLine: puts the main numbers of a record into one line of words.

namespace {

using nlohmann::json;

constexpr double kLargestWhole = 9e15;

// Builds the line; numbers that the record lacks are left out.
class Words {
 public:
  explicit Words(const json& record) : record_(record) {}

  // Appends "  NAME VALUE" in `format`; the value is multiplied by `factor`.
  Words& Add(std::string_view name, const char* member, const char* format, double factor = 1) {
    const double value = NumberOf(record_, member);
    if (std::isnan(value)) return *this;
    line_ += fmt::format("  {}{}", name, fmt::format(fmt::runtime(format), value * factor));
    return *this;
  }
  // Appends "  NAME VALUE" for a whole number, with separators of thousands.
  Words& Count(std::string_view name, const char* member, std::string_view unit = {}) {
    const double value = NumberOf(record_, member);
    if (!(std::abs(value) < kLargestWhole)) return *this;
    line_ += fmt::format("  {}{}{}", name, report::WithThousands(std::llround(value)), unit);
    return *this;
  }
  Words& Bytes(std::string_view name, const char* member) {
    const double value = NumberOf(record_, member);
    if (!(value >= 0 && value < kLargestWhole)) return *this;
    line_ += fmt::format("  {}{}", name, report::AsBytes(std::llround(value)));
    return *this;
  }
  Words& Text(std::string_view name, const char* member) {
    const std::string text = OneLine(TextOf(record_, member));
    if (!text.empty()) line_ += fmt::format("  {}{}", name, text);
    return *this;
  }
  // Appends the loss; null means that it was not finite.
  Words& Loss() {
    const auto member = record_.find("loss");
    if (member != record_.end() && member->is_null()) line_ += "  loss not finite";
    return Add("loss ", "loss", "{:.4f}");
  }
  std::string Line() const { return line_.substr(std::min<std::size_t>(2, line_.size())); }

 private:
  const json& record_;
  std::string line_;
};

}  // namespace

std::string RecordLine(std::string_view line) {
  const auto parsed = deck::TryParseJson(line, FollowedFile::kMaxLine);
  const std::string kind = parsed && parsed->is_object() ? TextOf(*parsed, "kind") : "";
  if (kind.empty()) {
    return line.empty()
               ? "unreadable: an empty line, or one that is too long"
               : fmt::format("unreadable: a line of {}", report::Counted(std::ssize(line), "byte"));
  }
  Words words(*parsed);
  const std::string begin = OneLine(kind, 40) + " ";
  if (kind == "event") {
    return words.Count(begin, "step").Text("", "event").Text("", "text").Text("on ", "host").Line();
  }
  if (kind == "interval") {
    return words.Count(begin, "step")
        .Add("loss ", "loss_mean", "{:.4f}")
        .Add("from ", "loss_min", "{:.4f}")
        .Add("to ", "loss_max", "{:.4f}")
        .Count("", "tokens_per_second_mean", " tokens/s")
        .Bytes("memory ", "memory_bytes")
        .Add("", "watts_per_node", "{:.0f} W per node")
        .Add("", "joules_per_token", "{:.3g} J per token")
        .Add("GPU ", "gpu_utilisation", "{:.0f}%", 100)
        .Line();
  }
  words.Count(begin, "step").Add("epoch ", "epoch", "{:.2f}").Text("set ", "set").Loss();
  if (kind == "step") {
    words.Add("rate ", "learning_rate", "{:.1e}").Add("|grad| ", "grad_norm", "{:.2f}");
  }
  if (kind == "step" || kind == "done") {
    words.Count("", "tokens_per_second", " tokens/s").Add("roof ", "roof_fraction", "{:.0f}%", 100);
  }
  return words.Line();
}

}  // namespace trireme::tools
