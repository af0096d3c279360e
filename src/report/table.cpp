// The lines of the screen in columns. Fields too long for their column take a shorter form.
#include "table.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace trireme::report {

// Tally: sums over step records. SummaryText: the closing summary made from them.

void Range::Add(double value) {
  if (!std::isfinite(value)) return;
  min_ = std::fmin(min_, value);  // fmin of a number and NaN is the number
  max_ = std::fmax(max_, value);
  sum_ += value;
  ++count_;
}

Spread Range::Of() const {
  return {.min = min_, .max = max_, .mean = count_ > 0 ? sum_ / static_cast<double>(count_) : NAN};
}

// The members that are summed up over the steps, and what their sums come from.
constexpr std::pair<double Tally::*, double Record::*> kSums[] = {
    {&Tally::seconds, &Record::step_seconds},
    {&Tally::compute, &Record::seconds_compute},
    {&Tally::communication, &Record::seconds_exposed_communication},
    {&Tally::bubble, &Record::seconds_bubble},
    {&Tally::data, &Record::seconds_data},
    {&Tally::checkpoint, &Record::seconds_checkpoint}};

void Tally::Add(const Record& record) {
  ++steps;
  tokens += record.tokens_per_second * record.step_seconds;
  operations += record.flops_per_second * record.step_seconds;
  roof_seconds += record.roof_fraction * record.step_seconds;
  for (const auto& [sum, member] : kSums) this->*sum += record.*member;
  memory = std::max(memory, record.memory_bytes);
  loss_range.Add(record.loss);
  norm_range.Add(record.grad_norm);
  seconds_range.Add(record.step_seconds);
  speed_range.Add(record.tokens_per_second);
}

Record Tally::Mean(Record record) const {
  const auto count = static_cast<double>(std::max<std::int64_t>(steps, 1));
  const auto rate = [this](double sum) { return seconds > 0 ? sum / seconds : 0.0; };
  for (const auto& [sum, member] : kSums) record.*member = this->*sum / count;
  record.tokens_per_second = rate(tokens);
  record.flops_per_second = rate(operations);
  record.roof_fraction = rate(roof_seconds);
  record.memory_bytes = std::max(memory, record.memory_bytes);
  return record;
}

Interval Tally::Since(const Record& record) const {
  Interval interval{.last = Mean(record),
                    .steps = steps,
                    .loss = loss_range.Of(),
                    .grad_norm = norm_range.Of(),
                    .step_seconds = seconds_range.Of(),
                    .tokens_per_second = speed_range.Of()};
  interval.tokens_per_second.mean = interval.last.tokens_per_second;
  return interval;
}

TimeFacts Tally::Times(double elapsed) const {
  TimeFacts times{.elapsed = elapsed,
                  .compute = compute,
                  .exposed_communication = communication,
                  .bubble = bubble,
                  .data = data,
                  .checkpoint = checkpoint,
                  .validation = validation};
  const double seen = compute + communication + bubble + data + checkpoint + validation;
  times.other = std::max(elapsed - seen, 0.0);
  return times;
}

void Losses::Add(const Record& record) {
  if (record.kind == Record::Kind::kStep) {
    if (!history.first_loss && std::isfinite(record.loss)) history.first_loss = record.loss;
    last_step = record.loss;
  } else if (record.kind == Record::Kind::kValid) {
    last_valid = record.loss;
    if (record.loss < history.best_valid.value_or(INFINITY)) {
      history.best_valid = record.loss;
      history.best_valid_step = record.step;
    }
  } else if (record.kind == Record::Kind::kTest) {
    test = record.loss;
  }
}

LossFacts Losses::Facts() const {
  const auto known = [](double loss) {
    return std::isfinite(loss) ? std::optional<double>(loss) : std::nullopt;
  };
  return {.first = history.first_loss,
          .last = known(last_step),
          .best_valid = history.best_valid,
          .last_valid = known(last_valid),
          .test = known(test),
          .best_valid_step = history.best_valid_step};
}

namespace {

std::string TotalsText(const Record& record, const Tally& session, double elapsed) {
  std::string text = Counted(record.step, "step");
  if (session.steps != record.step) {
    text += fmt::format(" ({} in this session)", WithThousands(session.steps));
  }
  text += fmt::format(", {} tokens, {}", WithThousands(record.tokens), AsClock(elapsed));
  if (session.seconds > 0) {
    text +=
        fmt::format("; {} tokens/s", WithThousands(std::llround(session.tokens / session.seconds)));
  }
  const std::int64_t memory = std::max(session.memory, record.memory_bytes);
  if (memory > 0) text += fmt::format("; peak memory {} per rank", AsBytes(memory));
  return text;
}

// Shares of the session's wall time; "other" is the time that no timer measured.
std::string TimeText(const TimeFacts& time) {
  const auto share = [&](double seconds) { return 100 * seconds / time.elapsed; };
  return fmt::format(
      "compute {:.1f}%, communication {:.1f}%, {}data {:.1f}%, checkpoint {:.1f}%, "
      "validation {:.1f}%, other {:.1f}%",
      share(time.compute), share(time.exposed_communication),
      time.bubble > 0 ? fmt::format("bubble {:.1f}%, ", share(time.bubble)) : "", share(time.data),
      share(time.checkpoint), share(time.validation), share(time.other));
}

std::string LossText(const Losses& losses) {
  // "last 4.5678" between two texts; empty without a loss.
  const auto last = [](const char* before, double loss, const char* after) {
    return std::isnan(loss) ? "" : fmt::format("{}last {:.4f}{}", before, loss, after);
  };
  std::vector<std::string> parts;
  if (losses.history.first_loss) {
    parts.push_back(fmt::format("train first {:.4f}{}", *losses.history.first_loss,
                                last(", ", losses.last_step, "")));
  }
  if (losses.history.best_valid) {
    parts.push_back(fmt::format("valid {}best {:.4f} at step {}", last("", losses.last_valid, ", "),
                                *losses.history.best_valid,
                                WithThousands(losses.history.best_valid_step)));
  }
  if (!std::isnan(losses.test)) parts.push_back(fmt::format("test {:.4f}", losses.test));
  return fmt::format("{}", fmt::join(parts, "; "));
}

// The line about gathers of sharded parameters; empty if there were none.
std::string GathersText(const Gathers& gathers, std::int64_t steps) {
  if (!(gathers.count > 0) || steps == 0) return {};
  return fmt::format(
      "{:.1f} per step and rank, of sharded parameters; {:.1f}% complete when needed",
      gathers.count / static_cast<double>(steps), 100 * gathers.ready / gathers.count);
}

}  // namespace

std::string SummaryText(const char* how, const Record& record, const Tally& session,
                        const Losses& losses, double elapsed,
                        const std::vector<std::pair<std::string, std::string>>& files,
                        const std::vector<TrafficRow>& traffic, const Gathers& gathers) {
  std::string text = fmt::format("{:<8}{}", how, TotalsText(record, session, elapsed));
  if (elapsed > 0 && session.steps > 0) {
    text += fmt::format("\n{:<8}{}", "time", TimeText(session.Times(elapsed)));
  }
  const std::string loss = LossText(losses);
  if (!loss.empty()) text += fmt::format("\n{:<8}{}", "loss", loss);
  const std::string table = TrafficTable(traffic, session.steps, session.seconds);
  if (!table.empty()) text += "\n" + table;
  const std::string gathered = GathersText(gathers, session.steps);
  if (!gathered.empty()) text += fmt::format("\n{:<8}{}", "gathers", gathered);
  std::size_t width = 0;
  for (const auto& [what, path] : files) width = std::max(width, what.size());
  const char* word = "files";
  for (const auto& [what, path] : files) {
    text += fmt::format("\n{:<8}{:<{}}  {}", word, what, width, path);
    word = "";
  }
  return text;
}

namespace {

std::string Fixed(double value, int decimals, double limit) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::abs(value);
  if (size < limit) return fmt::format("{:.{}f}", value, decimals);
  return fmt::format("{:.{}e}", value, size < 1e99 ? 1 : 0);
}

std::string PerplexityField(double loss) {
  const double value = Perplexity(loss);
  if (!(value < 999999.9)) return fmt::format("{:.1e}", value);
  const std::string tenths = fmt::format("{:.1f}", value);
  const auto whole = static_cast<std::int64_t>(std::stod(tenths));
  return WithThousands(whole) + tenths.substr(tenths.size() - 2);
}

std::string SpeedField(double tokens_per_second) {
  constexpr double kWidest = 9999999.5;  // "9,999,999" fills the column
  if (!(tokens_per_second < kWidest)) return WithSuffix(tokens_per_second);
  return WithThousands(std::llround(tokens_per_second));
}

std::string PercentField(double fraction, int decimals) {
  if (!std::isfinite(fraction)) return "-";
  const double percent = 100 * fraction;
  return fmt::format("{:.{}f}%", percent, percent < 99.95 ? decimals : 0);
}

std::string LossFields(const Record& record) {
  return fmt::format("{:>8}{:>9}{:>12}", Fixed(record.epoch, 2, 9999.99),
                     record.no_target ? "-" : Fixed(record.loss, 4, 999.9),
                     record.no_target ? "no target" : PerplexityField(record.loss));
}

}  // namespace

std::string TableHeader(bool has_stages) {
  return fmt::format("{}    rate   |grad|  tokens/s  roof   comm{}  elapsed     left",
                     ShortTableHeader(), has_stages ? " bubble" : "");
}

std::string ShortTableHeader() { return "    step   epoch     loss  perplexity"; }

std::string StepLine(const Record& record, double elapsed, double left, bool has_stages) {
  const auto share = [&record](double seconds) {
    return PercentField(record.step_seconds > 0 ? seconds / record.step_seconds : 0, 1);
  };
  const std::string roof = record.roof_fraction > 0 ? PercentField(record.roof_fraction, 0) : "-";
  return fmt::format("{:>8}{}{:>9}{:>8}{:>10}{:>6}{:>7}{}{:>9}{:>9}", record.step,
                     LossFields(record), fmt::format("{:.1e}", record.learning_rate),
                     Fixed(record.grad_norm, 2, 9999.9), SpeedField(record.tokens_per_second), roof,
                     share(record.seconds_exposed_communication),
                     has_stages ? fmt::format("{:>7}", share(record.seconds_bubble)) : "",
                     AsClock(elapsed), AsClock(left));
}

std::string EvaluationLine(const Record& record) {
  const bool valid = record.kind != Record::Kind::kTest;
  const std::string sample =
      record.windows == 0
          ? ""
          : fmt::format("  {} of {} {}", WithThousands(record.windows),
                        WithThousands(record.all_windows), record.pairs ? "pairs" : "windows");
  return fmt::format("{:>8}{}{}{}{}{}", valid ? "valid" : "test", LossFields(record),
                     record.set.empty() ? "" : "  ", record.set, sample,
                     record.averaged ? "  averaged" : "");
}

std::string LiveLine(const Record& record, std::int64_t total_steps, double left) {
  const std::string of = total_steps > 0 ? " of " + WithThousands(total_steps) : "";
  return fmt::format("    step {}{}, loss {}, {} tokens/s, {} left", WithThousands(record.step), of,
                     record.no_target ? "none" : Fixed(record.loss, 4, 999.9),
                     SpeedField(record.tokens_per_second), AsClock(left));
}

// The table of transfers between ranks in the closing summary.

namespace {

std::string CallsField(double calls) {
  return calls < 9999.95 ? fmt::format("{:.1f}", calls) : WithThousands(std::llround(calls));
}

// "-" for transfers that send nothing, such as receives.
std::string BytesField(double bytes) {
  return bytes > 0 ? AsBytes(std::llround(bytes)) : std::string("-");
}

std::string TrafficSeconds(double seconds) {
  const int decimals = seconds < 9.9995 ? 3 : seconds < 99.995 ? 2 : seconds < 9999.95 ? 1 : 0;
  return fmt::format("{:.{}f}", seconds, decimals);
}

}  // namespace

std::string TrafficTable(const std::vector<TrafficRow>& rows, std::int64_t steps, double seconds) {
  if (rows.empty() || steps == 0) return {};
  std::string text = fmt::format("{:<8}{:<11}{:<14}{:>12}{:>10}{:>10}{:>9}{:>7}{:>9}{:>9}",
                                 "traffic", "group", "transfer", "calls/step", "sent/step", "sent",
                                 "waited", "share", "longest", "hidden");
  for (const TrafficRow& row : rows) {
    const double rank_steps = row.ranks * static_cast<double>(steps);
    const std::string share =
        seconds > 0 ? fmt::format("{:.1f}%", 100 * row.seconds_waited / seconds) : "-";
    text += fmt::format("\n{:<8}{:<11}{:<14}{:>12}{:>10}{:>10}{:>9}{:>7}{:>9}{:>9}", "", row.group,
                        row.transfer, CallsField(row.calls / rank_steps),
                        BytesField(row.bytes / rank_steps), BytesField(row.bytes),
                        TrafficSeconds(row.seconds_waited), share,
                        TrafficSeconds(row.longest_waited), TrafficSeconds(row.seconds_hidden));
  }
  return text +
         "\n        training steps only; calls, bytes per step: of one rank that takes part; sent: "
         "by all ranks;\n        waited, hidden: mean seconds of a rank; share: of the steps' "
         "time; longest: of one rank";
}

// Standard output as a terminal or as a batch log.

namespace {

constexpr std::chrono::milliseconds kLiveInterval{200};
constexpr std::string_view kClear = "\r\x1b[K";
constexpr int kDefaultColumns = 80;

// True if the standard output of the launcher (the parent process) is a terminal.
bool LauncherHasTerminal() {
  const std::string link = fmt::format("/proc/{}/fd/1", getppid());
  std::array<char, 256> target{};
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  if (length <= 0) return false;
  const std::string_view path(target.data(), static_cast<std::size_t>(length));
  if (!path.starts_with("/dev/pts/") && !path.starts_with("/dev/tty")) return false;
  const int file = open(link.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return false;
  const bool terminal = isatty(file) == 1;
  close(file);
  return terminal;
}

// Blocks SIGPIPE while it lives and discards a pending one at the end: if the reader of standard
// output has gone, the next write raises SIGPIPE, which would end the run.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutPipeSignal() {
    const timespec now{};
    sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

std::size_t Columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return static_cast<std::size_t>(known ? size.ws_col : kDefaultColumns);
}

}  // namespace

bool IsTerminal() {
  if (isatty(STDOUT_FILENO) != 1) return false;
  const char* kind = std::getenv("TERM");
  if (kind == nullptr || std::string_view(kind) == "dumb") return false;
  return std::getenv("OMPI_COMM_WORLD_RANK") == nullptr || LauncherHasTerminal();
}

Screen::~Screen() {
  if (live_) Put(kClear);
}

void Screen::Line(std::string_view text) {
  if (live_) Put(kClear);
  live_ = false;
  Put(std::string(text) + "\n");
}

bool Screen::WantsLive() {
  if (!terminal_) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_live_ < kLiveInterval) return false;
  last_live_ = now;
  return true;
}

void Screen::Live(std::string_view text) {
  Put(std::string(kClear) + std::string(text.substr(0, Columns() - 1)));
  live_ = true;
}

void Screen::Put(std::string_view text) {
  if (broken_) return;
  const WithoutPipeSignal guard;
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && ok) return;
  broken_ = true;
  std::clearerr(stdout);
}

}  // namespace trireme::report
