// Monitor: decides which steps are printed and recorded, and where lines go. The banner.
#include "trireme/report/monitor.hpp"

#include <fmt/ranges.h>
#include <sys/resource.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "metrics_file.hpp"
#include "table.hpp"
#include "trireme/base/error.hpp"
#include "trireme/report/append_file.hpp"

namespace trireme::report {

namespace {

constexpr int kLinesPerHeader = 20;  // step lines on a terminal between two headers

double SecondsSince(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

// A warning that names the steps without a record in metrics.jsonl; empty if there are none.
std::string MissingText(const History& history) {
  constexpr std::size_t kShown = 3;
  if (history.missing.empty()) return {};
  std::vector<std::string> ranges;
  for (const auto& [first, last] : history.missing) {
    ranges.push_back(fmt::format("{} to {}", WithThousands(first), WithThousands(last)));
  }
  const bool more = ranges.size() > kShown;
  if (more) ranges.resize(kShown);
  return fmt::format(
      "metrics.jsonl holds no records of steps {}{}: they were deleted, or could not be written",
      fmt::join(ranges, ", "), more ? " and others" : "");
}

}  // namespace

struct Monitor::State {
  explicit State(const Session& given) : options(given), screen(IsTerminal()) {
    if (options.folder.empty()) return;
    const std::string metrics_path = options.folder + "/metrics.jsonl";
    if (options.resumed)
      losses.history = CutMetrics(metrics_path, options.resume_step, options.best_after);
    log = std::make_unique<AppendFile>(options.folder + "/log.txt", !options.resumed);
    auto own = std::make_unique<MetricsSink>(metrics_path, !options.resumed);
    metrics = own.get();
    sinks.push_back({std::move(own)});
    sinks.push_back({std::make_unique<SummaryFile>(options.folder, !options.resumed)});
  }

  // Prints one or more lines on the screen and in the log.
  void Put(const std::string& text) {
    screen.Line(text);
    // A log that cannot be written must not end the run: only the first failure is reported.
    const std::string reason = log ? log->Append(text + "\n") : std::string();
    if (reason.empty() || log_failed) return;
    log_failed = true;
    Put(fmt::format("warning: {}: cannot be written: {}; the run goes on without it", log->Path(),
                    reason));
  }

  // Calls give(sink) for each sink and prints a warning for each new failure.
  template <typename Give>
  void Each(Give&& give) {
    GiveAll(give);
    std::vector<std::string> failures;
    {
      const std::lock_guard<std::mutex> lock(failing);
      failures.swap(untold);
    }
    for (const std::string& failure : failures) {
      Put(fmt::format("warning: {}; the run goes on without it", failure));
    }
  }

  // Calls give(sink) for each sink and keeps failures in `untold`. Any thread may call it.
  template <typename Give>
  void GiveAll(Give&& give) {
    for (Kept& kept : sinks) {
      try {
        give(*kept.sink);
      } catch (const std::exception& error) {
        const std::lock_guard<std::mutex> lock(failing);
        if (!std::exchange(kept.failed, true)) untold.emplace_back(error.what());
      }
    }
  }

  // Begins files anew that someone has deleted, moved or replaced, and prints a warning for each.
  void Renew() {
    std::vector<std::string> anew;
    std::error_code ignored;
    // If the folder is gone, the next checkpoint fails and reports it.
    if (options.folder.empty() || !std::filesystem::exists(options.folder, ignored)) return;
    if (log && log->Gone()) {
      try {
        log = std::make_unique<AppendFile>(log->Path(), false);
        anew.push_back(log->Path());
      } catch (const Error&) {
        // The next checkpoint will fail and report the reason.
      }
    }
    Each([&](Sink& sink) {
      if (std::string path = sink.Renew(); !path.empty()) anew.push_back(std::move(path));
    });
    for (const std::string& path : anew) {
      const std::string what = fmt::format(
          "{}: was deleted, moved or replaced while the run went on; a new file goes on after step "
          "{}",
          path, WithThousands(step));
      Put("warning: " + what);
      Each([&](Sink& sink) {
        sink.Happened({.name = "file gone", .step = step, .host = options.host, .text = what});
      });
    }
  }

  void PutHeader() {
    const bool again = screen.Terminal() && lines_since_header >= kLinesPerHeader;
    if (header_shown && !again) return;
    const std::string header =
        options.total_steps > 0 ? TableHeader(options.has_stages) : ShortTableHeader();
    if (header_shown) {
      screen.Line(header);  // on the screen only: the log gets it once
    } else {
      Put(header);
    }
    header_shown = true;
    lines_since_header = 0;
  }

  // Seconds to the end of the schedule at this session's pace, validation included; -1: unknown.
  double Left(const Record& record) const {
    if (options.total_steps <= 0 || session.steps == 0) return -1;
    const double seconds = SecondsSince(stepping_since);
    if (options.total_tokens > 0 && session.tokens > 0) {
      const std::int64_t tokens = std::max<std::int64_t>(0, options.total_tokens - record.tokens);
      return seconds / session.tokens * static_cast<double>(tokens);
    }
    const double pace = seconds / static_cast<double>(session.steps);
    return pace * static_cast<double>(options.total_steps - record.step);
  }

  Session options;
  Screen screen;
  std::unique_ptr<AppendFile> log;  // null without a run folder
  bool log_failed = false;
  struct Kept {
    std::unique_ptr<Sink> sink;
    bool failed = false;  // has failed before
  };
  std::vector<Kept> sinks;
  MetricsSink* metrics = nullptr;   // the first of the sinks; null without a run folder
  std::mutex failing;               // guards Kept::failed and `untold`
  std::vector<std::string> untold;  // failures of sinks not yet printed
  bool header_shown = false;
  int lines_since_header = 0;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point stepping_since;  // start of this session's first step
  Tally interval;                                        // steps since the last interval record
  Tally session;                                         // steps of this session
  Losses losses;
  std::int64_t step = options.resume_step;  // last step taken
  std::vector<std::string> samples;
};

Monitor::Monitor(const Session& session) {
  if (session.root) state_ = std::make_unique<State>(session);
}

Monitor::~Monitor() = default;

void Monitor::Banner(const BannerFacts& facts) {
  if (!state_) return;
  state_->Put(BannerText(facts));
  if (const std::string text = MissingText(state_->losses.history); !text.empty()) Warn(text);
}

void Monitor::Line(const std::string& text) {
  if (state_) state_->Put(text);
}

void Monitor::Warn(const std::string& text) {
  if (state_) state_->Put("warning: " + text);
}

void Monitor::Attach(std::unique_ptr<Sink> sink) {
  if (state_) state_->sinks.push_back({std::move(sink)});
}

void Monitor::FlushRecords() {
  if (!state_) return;
  state_->Renew();
  state_->Each([](Sink& sink) { sink.Flush(); });
}

void Monitor::SyncRecords() {
  if (state_) state_->GiveAll([](Sink& sink) { sink.Sync(); });
}

void Monitor::Happened(const Event& event) {
  if (!state_) return;
  Event told = event;
  if (told.host.empty()) told.host = state_->options.host;
  state_->Each([&](Sink& sink) { sink.Happened(told); });
}

void Monitor::Sample(std::int64_t step, const std::string& text) {
  if (!state_) return;
  state_->Put("sample  " + text);
  state_->samples.push_back(text);
  state_->Each([&](Sink& sink) { sink.Sample(step, text); });
}

void Monitor::GoBack(std::int64_t step, std::int64_t best_after) {
  if (!state_) return;
  State& state = *state_;
  state.Renew();
  state.interval = {};
  state.step = step;
  state.Each([&](Sink& sink) {
    if (&sink == state.metrics) {
      state.losses.history = state.metrics->CutTo(step, best_after);
    } else {
      sink.GoBack(step);
    }
  });
}

void Monitor::Step(const Record& record) {
  if (!state_) return;
  State& state = *state_;
  if (state.session.steps == 0) {
    const std::chrono::duration<double> first(record.step_seconds);
    state.stepping_since = std::chrono::steady_clock::now() -
                           std::chrono::duration_cast<std::chrono::steady_clock::duration>(first);
  }
  state.interval.Add(record);
  state.session.Add(record);
  state.losses.Add(record);
  state.step = record.step;
  const bool due = record.step % state.options.every_steps == 0 || record.step == 1 ||
                   record.step == state.options.total_steps;
  const double left = state.Left(record);
  state.Each([&](Sink& sink) { sink.Step(record); });
  if (!due && !record.ends_interval) {
    if (state.screen.WantsLive()) {
      state.screen.Live(LiveLine(state.interval.Mean(record), state.options.total_steps, left));
    }
    return;
  }
  const Interval interval = state.interval.Since(record);
  state.interval = {};
  if (due) {  // else recorded, but not printed
    state.PutHeader();
    state.Put(StepLine(interval.last, SecondsSince(state.started), left, state.options.has_stages));
    ++state.lines_since_header;
  }
  state.Each([&](Sink& sink) { sink.Interval(interval); });
}

void Monitor::Evaluation(const Record& record) {
  if (!state_) return;
  state_->session.validation += record.step_seconds;
  state_->losses.Add(record);
  state_->PutHeader();
  state_->Put(EvaluationLine(record));
  state_->Each([&](Sink& sink) { sink.Evaluation(record); });
}

std::pair<Record, std::int64_t> Monitor::Means() const {
  if (!state_) return {};
  return {state_->session.Mean({}), state_->session.steps};
}

void Monitor::Done(const Record& record, Summary summary) {
  if (!state_) return;
  State& state = *state_;
  const double elapsed = SecondsSince(state.started);
  state.session.checkpoint += record.seconds_checkpoint;
  summary.done = record.ended && record.step >= state.options.total_steps;
  summary.ended = UtcNow();
  summary.last = state.session.Mean(record);
  summary.losses = state.losses.Facts();
  summary.time = state.session.Times(elapsed);
  summary.samples = std::move(state.samples);
  LeaveOutRanks(summary);
  state.Renew();
  state.Each([&](Sink& sink) { sink.Done(summary); });
  state.Put(SummaryText(summary.done ? "done" : "stopped", record, state.session, state.losses,
                        elapsed, summary.files, summary.traffic, summary.gathers));
}

// Memory of this process, from /proc.

// The value of a line of /proc/self/status in bytes; -1 if there is no such line.
static std::int64_t StatusBytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::int64_t kibibytes = 0;
    if (word == name && status >> kibibytes) return kibibytes * 1024;
  }
  return -1;
}

// VmHWM counts this program alone. ru_maxrss, used where /proc is missing, survives exec: a small
// program started by a large one would report its parent's peak.
std::int64_t PeakResidentBytes() {
  if (const std::int64_t bytes = StatusBytes("VmHWM:"); bytes >= 0) return bytes;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::int64_t SharedResidentBytes() { return std::max(StatusBytes("RssShmem:"), std::int64_t{0}); }

// The banner: what runs where, one fact per line, each after a keyword.

namespace {

constexpr std::size_t kIndent = 8;  // column where the text after the keyword begins

// "parameters 37 + gradients 37 = 74 MiB"; the rounded terms add up to the printed sum.
std::string MemoryText(const BannerFacts& facts) {
  constexpr double kMebi = 1024.0 * 1024.0, kGibi = 1024.0 * kMebi;
  double sum = 0;
  for (const auto& [term, bytes] : facts.memory) sum += static_cast<double>(bytes);
  const bool in_gibi = sum >= 10 * kGibi;
  const double unit = in_gibi ? kGibi : kMebi;
  const int decimals = in_gibi || sum < 10 * kMebi ? 1 : 0;
  const double scale = decimals == 1 ? 10 : 1;

  std::string text;
  double so_far = 0, printed = 0;  // sum of bytes; sum of printed terms, in unit / scale
  for (const auto& [term, bytes] : facts.memory) {
    so_far += static_cast<double>(bytes);
    const double rounded = std::round(so_far / unit * scale);
    text += fmt::format("{}{} {:.{}f}", text.empty() ? "" : " + ", term,
                        (rounded - printed) / scale, decimals);
    printed = rounded;
  }
  return fmt::format("{} = {:.{}f} {}", text, printed / scale, decimals, in_gibi ? "GiB" : "MiB");
}

// Arranges the entries in columns, filled downwards, in lines of at most 100 characters:
// neighbouring ranks stand below each other, and halves of the grid side by side.
std::string MapText(const std::vector<std::string>& entries) {
  constexpr std::size_t kWidth = 100 - kIndent, kGap = 4;
  if (entries.empty()) return {};
  std::size_t widest = 1;
  for (const std::string& entry : entries) widest = std::max(widest, entry.size());
  const std::size_t most = std::max<std::size_t>(1, (kWidth + kGap) / (widest + kGap));
  const std::size_t lines = (entries.size() + most - 1) / most;
  std::string text;
  for (std::size_t line = 0; line < lines; ++line) {
    if (line > 0) text += fmt::format("\n{:<{}}", "", kIndent);
    for (std::size_t at = line; at < entries.size(); at += lines) {
      const bool last = at + lines >= entries.size();
      text += last ? entries[at] : fmt::format("{:<{}}", entries[at], widest + kGap);
    }
  }
  return text;
}

std::string RoofText(double flops) {
  constexpr double kGiga = 1e9, kTera = 1e12;
  const bool in_tera = flops >= 10 * kTera;
  const double value = flops / (in_tera ? kTera : kGiga);
  return fmt::format("{:.{}f} {}FLOP/s", value, value < 9.95 ? 1 : 0, in_tera ? "T" : "G");
}

}  // namespace

std::string BannerText(const BannerFacts& facts) {
  std::string text =
      fmt::format("Trireme {} ({})   {} on {}, {}{}{}   device {}   precision {}", facts.version,
                  facts.commit, Counted(facts.ranks, "rank"), Counted(facts.hosts, "host"),
                  Counted(facts.threads, "thread"), facts.ranks > 1 ? " each" : "",
                  facts.pinned ? ", pinned" : "", facts.device, facts.precision);
  const auto add = [&text](const char* word, const std::string& line) {
    if (!line.empty()) text += fmt::format("\n{:<{}}{}", word, kIndent, line);
  };
  add("grid", facts.grid);
  add("map", MapText(facts.ranks_map));
  add("model", facts.model);
  add("data", facts.data);
  add("kernels", facts.kernels);
  add("links", facts.links);
  if (!facts.memory.empty()) {
    add("memory", (facts.memory_differs ? "largest rank: " : "per rank: ") + MemoryText(facts));
  }
  if (facts.roof_flops > 0) add("roof", RoofText(facts.roof_flops) + " per rank (measured)");
  return text;
}

}  // namespace trireme::report
