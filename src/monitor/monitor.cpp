// The monitor of a run: decides which steps are printed and recorded, and where lines go.
#include "trireme/monitor/monitor.hpp"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>

#include "trireme/monitor/append_file.hpp"
#include "metrics_file.hpp"
#include "screen.hpp"
#include "table.hpp"
#include "tally.hpp"
#include "trireme/base/error.hpp"

namespace trireme::monitor {

namespace {

constexpr int kLinesPerHeader = 20;  // step lines on a terminal before the columns are named again

double SecondsSince(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

struct Monitor::State {
  explicit State(const Session& given) : options(given), screen(IsTerminal()) {
    if (options.folder.empty()) return;
    const std::string metrics_path = options.folder + "/metrics.jsonl";
    if (options.resumed)
      losses.history = CutMetrics(metrics_path, options.resume_step, options.best_after);
    log = std::make_unique<AppendFile>(options.folder + "/log.txt", !options.resumed);
    metrics = std::make_unique<AppendFile>(metrics_path, !options.resumed);
  }

  // One or more lines to the screen and the log.
  void Put(const std::string& text) {
    screen.Line(text);
    Keep(log, text + "\n", log_failed);
  }

  void Write(const Record& record) { Keep(metrics, ToJsonLine(record), metrics_failed); }
  void Write(const Event& event) { Keep(metrics, ToJsonLine(event), metrics_failed); }

  // Losing a log must not lose a run: the first failure is said, later ones are silent.
  void Keep(const std::unique_ptr<AppendFile>& file, const std::string& text, bool& failed) {
    if (!file) return;
    const std::string reason = file->Append(text);
    if (reason.empty() || failed) return;
    failed = true;
    Put(fmt::format("warning: {}: cannot be written: {}; the run goes on without it", file->Path(),
                    reason));
  }

  void PutHeader() {
    const bool again = screen.Terminal() && lines_since_header >= kLinesPerHeader;
    if (header_shown && !again) return;
    const std::string header =
        options.total_steps > 0 ? TableHeader(options.has_stages) : ShortTableHeader();
    if (header_shown) {
      screen.Line(header);  // a log names its columns once
    } else {
      Put(header);
    }
    header_shown = true;
    lines_since_header = 0;
  }

  // Seconds to the end of the schedule at this session's pace, validation and checkpoints included.
  double Left(std::int64_t step) const {
    if (options.total_steps <= 0 || session.steps == 0) return -1;
    const double pace = SecondsSince(stepping_since) / static_cast<double>(session.steps);
    return pace * static_cast<double>(options.total_steps - step);
  }

  Session options;
  Screen screen;
  std::unique_ptr<AppendFile> log, metrics;  // null without a run folder
  bool log_failed = false, metrics_failed = false;
  bool header_shown = false;
  int lines_since_header = 0;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point stepping_since;  // begin of this session's first step
  Tally interval;                                        // steps since the last line
  Tally session;                                         // steps since the start of the program
  Losses losses;
};

Monitor::Monitor(const Session& session) {
  if (session.root) state_ = std::make_unique<State>(session);
}

Monitor::~Monitor() = default;

void Monitor::Banner(const BannerFacts& facts) {
  if (state_) state_->Put(BannerText(facts));
}

void Monitor::Line(const std::string& text) {
  if (state_) state_->Put(text);
}

void Monitor::Warn(const std::string& text) {
  if (state_) state_->Put("warning: " + text);
}

void Monitor::SyncRecords() const {
  if (state_ && state_->metrics) state_->metrics->Sync();
}

void Monitor::Happened(const Event& event) {
  if (state_) state_->Write(event);
}

void Monitor::GoBack(std::int64_t step, std::int64_t best_after) {
  if (!state_) return;
  State& state = *state_;
  state.interval = {};
  if (!state.metrics) return;
  const std::string path = state.metrics->Path();
  state.metrics.reset();
  const auto unless_lost = [&](const auto& change) {
    try {
      change();
    } catch (const Error& error) {
      state.Put(fmt::format("warning: {}; the run goes on", error.what()));
    }
  };
  unless_lost([&] { state.losses.history = CutMetrics(path, step, best_after); });
  unless_lost([&] { state.metrics = std::make_unique<AppendFile>(path, false); });
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
  const bool due = record.step % state.options.every_steps == 0 || record.step == 1 ||
                   record.step == state.options.total_steps;
  const double left = state.Left(record.step);
  if (!due) {
    if (state.screen.WantsLive()) {
      state.screen.Live(LiveLine(state.interval.Mean(record), state.options.total_steps, left));
    }
    return;
  }
  const Record mean = state.interval.Mean(record);
  state.interval = {};
  state.PutHeader();
  state.Put(StepLine(mean, SecondsSince(state.started), left, state.options.has_stages));
  ++state.lines_since_header;
  state.Write(mean);
}

void Monitor::Evaluation(const Record& record) {
  if (!state_) return;
  state_->session.validation += record.step_seconds;
  state_->losses.Add(record);
  state_->PutHeader();
  state_->Put(EvaluationLine(record));
  state_->Write(record);
}

void Monitor::Done(const Record& record,
                   const std::vector<std::pair<std::string, std::string>>& files,
                   const std::vector<TrafficRow>& traffic, const Gathers& gathers) {
  if (!state_) return;
  State& state = *state_;
  state.session.checkpoint += record.seconds_checkpoint;
  const bool finished = record.ended && record.step >= state.options.total_steps;
  if (finished) state.Write(state.session.Mean(record));
  state.Put(SummaryText(finished ? "done" : "stopped", record, state.session, state.losses,
                        SecondsSince(state.started), files, traffic, gathers));
}

}  // namespace trireme::monitor
