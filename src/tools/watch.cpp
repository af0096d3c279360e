// Watch: follows runs on a terminal or, line by line, in a pipe.
#include "trireme/tools/watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <deque>

#include "run_state.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tools {

namespace {

constexpr double kPause = 0.5;    // seconds between two looks at the files
constexpr double kReading = 0.1;  // seconds of reading before keys are checked again

volatile std::sig_atomic_t stop_asked = 0;

// Lets signals end the watch. Without SA_RESTART, so that a wait ends at once.
void HeedSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = 1; };
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

void OnTerminal(Terminal& terminal, std::deque<FollowedRun>& runs) {
  std::vector<const FollowedRun*> shown;
  for (const FollowedRun& run : runs) shown.push_back(&run);
  Frame frame;
  while (stop_asked == 0) {
    bool behind = false;
    for (FollowedRun& run : runs) behind = run.ReadOn(kReading) || behind;
    terminal.Measure(frame);
    frame.now = std::time(nullptr);
    terminal.Show(LayOut(shown, frame));
    const std::int64_t last = std::ssize(runs) - RunsThatFit(std::ssize(runs), frame.rows);
    const Terminal::Key key = terminal.Wait(behind ? 0 : kPause);
    if (key == Terminal::Key::kQuit) return;
    if (key == Terminal::Key::kUp) frame.first = std::max<std::int64_t>(frame.first - 1, 0);
    if (key == Terminal::Key::kDown) {
      frame.first = std::min(frame.first + 1, std::max<std::int64_t>(last, 0));
    }
  }
}

// For the record of a stop or a hang: how the run ended, and the option that continues it. "" for
// other records.
std::string HowItStopped(std::string_view line, const std::string& folder) {
  const auto record = deck::TryParseJson(line, FollowedFile::kMaxLine);
  if (!record || !record->is_object()) return {};
  const std::string name = deck::TextOf(*record, "event");
  const auto step = NumberAfter(line, R"("step":)");
  if ((name != "stop" && name != "hang") || !step || std::isnan(*step)) return {};
  const std::string at = report::WithThousands(std::llround(*step));
  if (name == "hang") return fmt::format("its ranks hung at step {}; go on with -r {}", at, folder);
  return fmt::format("stopped at step {} by {}; go on with -r {}", at,
                     OneLine(deck::TextOf(*record, "text")), folder);
}

// A run followed in a pipe: its records are printed as they come.
class Teller {
 public:
  Teller(const std::string& path, bool several) : run_(path) {
    if (several) before_ = run_.name + "  ";
  }

  // Reads new records and prints them. Returns whether more can be read at once.
  bool Tell() {
    const FollowedFile::Visit visit{
        .line = [this](std::string_view line) { Tell(line); },
        .restart = [this] { known_.BeginAnew(), done_ = false, stop_.clear(); }};
    const FollowedFile::State now = run_.file.Read(visit);
    if (now == FollowedFile::State::kUnreadable && now != run_.condition) {
      fmt::print(stderr, "trireme: warning: {}: {}\n", run_.name, run_.file.Reason());
    }
    run_.condition = now;
    if (now == FollowedFile::State::kCaughtUp && !Done()) SayQuiet();
    return now == FollowedFile::State::kBehind;
  }
  bool Done() const { return done_ || !stop_.empty(); }
  // Says on the standard error how a run that was stopped goes on.
  void SayEnd() const {
    if (!stop_.empty()) fmt::print(stderr, "trireme: {}: {}\n", run_.name, stop_);
  }

 private:
  // Says once that the run is quiet: it may have been killed.
  void SayQuiet() {
    const std::int64_t age = std::time(nullptr) - run_.file.ModifiedAt();
    if (quiet_ || age < kQuiet) return;
    quiet_ = true;
    fmt::print(stderr,
               "trireme: {}: no record for {}: its job has ended, or its steps are long; what "
               "comes is shown\n",
               run_.name, report::AsClock(static_cast<double>(age)));
  }

  void Tell(std::string_view line) {
    quiet_ = false;
    done_ = line.starts_with(R"({"kind":"done")");
    stop_ = line.starts_with(R"({"kind":"event")") ? HowItStopped(line, run_.folder) : "";
    if (!known_.IsNew(line)) return;
    const std::string text = before_ + RecordLine(line) + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
  }

  FollowedRun run_;
  std::string before_;
  KnownLines known_;
  bool done_ = false;   // the last record says that the run is done
  std::string stop_;    // HowItStopped of the last record
  bool quiet_ = false;  // SayQuiet has printed since the last record
};

void InPipe(const std::vector<std::string>& paths) {
  std::deque<Teller> runs;
  for (const std::string& path : paths) runs.emplace_back(path, paths.size() > 1);
  while (stop_asked == 0) {
    bool behind = false;
    for (Teller& run : runs) behind = run.Tell() || behind;
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw RunError("standard output cannot be written");
    }
    if (behind) continue;
    if (std::all_of(runs.begin(), runs.end(), [](const Teller& run) { return run.Done(); })) {
      for (const Teller& run : runs) run.SayEnd();
      return;
    }
    const timespec pause = {.tv_sec = 0, .tv_nsec = static_cast<long>(1e9 * kPause)};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

void Watch(const std::vector<std::string>& paths) {
  std::deque<FollowedRun> runs;
  for (const std::string& path : paths) runs.emplace_back(path);
  HeedSignals();
  if (Terminal::IsThere()) {
    Terminal terminal;
    if (terminal.Open()) return OnTerminal(terminal, runs);
  }
  InPipe(paths);
}

}  // namespace trireme::tools
