// Watchdog: the thread that looks, and what it looks at.
#include "trireme/comm/watchdog.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "flight_memory.hpp"
#include "own_stack.hpp"
#include "process_state.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/cores.hpp"
#include "watchdog_findings.hpp"

namespace trireme::comm {

namespace {

constexpr double kShortestLook = 0.02, kLongestLook = 0.2;  // seconds between two looks
constexpr double kLooksABound = 20;

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

Watchdog::Watchdog(Setup setup)
    : setup_(std::move(setup)),
      watched_(::pthread_self()),
      node_(setup_.nodes.at(static_cast<std::size_t>(setup_.recorder->Mine().world_rank.load()))),
      node_count_(1 + *std::ranges::max_element(setup_.nodes)) {
  PrepareOwnStack();
}

Watchdog::~Watchdog() {
  Disarm();
  if (!thread_.joinable()) return;
  thread_.request_stop();
  wake_.notify_all();
}

void Watchdog::Arm(Phase phase, std::int64_t step, double seconds) {
  // Progress first: a shorter bound is never compared with the time before it.
  setup_.recorder->Progress(phase, step);
  armed_.fetch_add(1);
  bound_.store(seconds);
  setup_.recorder->Mine().armed.store(true);
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
  }
}

void Watchdog::Disarm() {
  bound_.store(0);
  setup_.recorder->Mine().armed.store(false);
  armed_.fetch_add(1);
}

void Watchdog::WriteInto(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  folder_ = folder;
}

void Watchdog::OnVerdict(std::function<void(const HangReport&)> told) {
  const std::lock_guard lock(mutex_);
  told_ = std::move(told);
}

// Ranks in other containers may share memory, but not process numbers.
void Watchdog::FindVisible() {
  const FlightMemory& memory = setup_.recorder->Memory();
  for (int rank = 0; rank < memory.ranks; ++rank) {
    const RankSlot& slot = memory.slots[rank];
    const ProcessState state = LookAt(slot.pid.load());
    visible_.push_back(state.started != 0 && state.started == slot.started.load());
  }
}

void Watchdog::Watch(const std::stop_token& stop) {
  device::BindThisThread(setup_.cores);
  FindVisible();
  const NodeWords& node = *setup_.recorder->Memory().node;
  double last = Seconds();
  while (!stop.stop_requested()) {
    const double bound = bound_.load();
    const double look =
        bound > 0 ? std::clamp(bound / kLooksABound, kShortestLook, kLongestLook) : kLongestLook;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, stop, std::chrono::duration<double>(look), [] { return false; });
    }
    // No more than two looks: whoever stopped this process may have stopped all of them.
    const double now = Seconds();
    const double elapsed = std::min(now - std::exchange(last, now), 2 * look);
    if (stop.stop_requested()) return;
    if (node.claim.load() != 0) Answer();
    if (!setup_.recorder->Mine().armed.load()) continue;
    if (const int gone = GoneNeighbour(); gone >= 0) {
      Alarm(fmt::format("a process of the job has ended by itself (process {})", gone), true);
    }
    if (Expired(elapsed)) {
      Alarm(fmt::format("nothing has come forward for {:.1f} s (run.hang_timeout)", idle_), false);
    }
    if (SessionHasFiles()) Alarm("another node has raised an alarm", false);
  }
}

// Whether the watched thread has been in one place for longer than its bound.
bool Watchdog::Expired(double elapsed) {
  RankSlot& mine = setup_.recorder->Mine();
  const double bound = bound_.load();  // before what it is compared with
  const std::int64_t progress = mine.progress.load(), armed = armed_.load();
  const bool moved = std::exchange(seen_progress_, progress) != progress;
  if (std::exchange(seen_armed_, armed) != armed || moved) {
    idle_ = 0;
  } else {
    idle_ += elapsed;
  }
  mine.idle.store(idle_);
  return bound > 0 && idle_ > bound;
}

// Asked once a second by one rank of a node that has itself waited for long: never while all is
// well. A thread of its own looks: a file system that does not answer must not hold this one up.
bool Watchdog::SessionHasFiles() {
  constexpr double kLong = 30;  // seconds; this node may be in a part with a longer bound
  if (node_count_ == 1 || setup_.recorder->Memory().rank != 0) return false;
  if (files_->found.load()) return true;
  if (idle_ < std::min(bound_.load() / 2, kLong) || idle_ - looked_ < 1) {
    looked_ = std::min(looked_, idle_);
    return false;
  }
  looked_ = idle_;
  if (!files_->asked.exchange(true)) {
    std::thread([files = files_, place = Place()] {
      if (FolderExists(place)) files->found.store(true);
      files->asked.store(false);
    }).detach();
  }
  return false;
}

// Process number of the next rank of the node if it has ended without a word; -1.
int Watchdog::GoneNeighbour() const {
  const FlightMemory& memory = setup_.recorder->Memory();
  for (int i = 1; i < memory.ranks; ++i) {
    const int rank = (memory.rank + i) % memory.ranks;
    const RankSlot& slot = memory.slots[rank];
    if (slot.leaves.load() || !visible_[static_cast<std::size_t>(rank)]) continue;
    const int pid = slot.pid.load();
    const ProcessState state = LookAt(pid);
    if (state.letter == '?') continue;
    const bool gone = IsGone(state.letter) || state.started != slot.started.load();
    return gone && !slot.leaves.load() ? pid : -1;
  }
  return -1;
}

void Watchdog::Alarm(const std::string& reason, bool at_once) {
  const FlightMemory& memory = setup_.recorder->Memory();
  std::int32_t none = 0;
  if (!memory.node->claim.compare_exchange_strong(none, memory.rank + 1)) Answer();
  Lead(reason, at_once);
}

void Watchdog::WriteOwnStack() {
  RankSlot& mine = setup_.recorder->Mine();
  const std::string text = TakeStack(watched_);
  for (std::size_t i = 0; i + 1 < mine.stack.size() && i < text.size(); ++i) {
    mine.stack[i].store(text[i]);
  }
  mine.answered.store(true);
}

// Another watchdog of the node leads: answers it, takes its place if it is lost, and ends.
void Watchdog::Answer() {
  constexpr double kPatience = 12, kPause = 0.02;
  FlightMemory& memory = setup_.recorder->Memory();
  WriteOwnStack();
  for (double waited = 0; waited < kPatience && !memory.node->over.load(); waited += kPause) {
    Sleep(kPause);
    std::int32_t leader = memory.node->claim.load();
    const RankSlot& slot = memory.slots[leader - 1];
    const ProcessState state = LookAt(slot.pid.load());
    if (!IsGone(state.letter) && !IsStopped(state.letter)) continue;
    if (!visible_[static_cast<std::size_t>(leader - 1)] || memory.node->over.load()) continue;
    if (memory.node->claim.compare_exchange_strong(leader, memory.rank + 1)) {
      Lead("nothing comes forward any more", false);
    }
  }
  ::_exit(1);
}

void Watchdog::AwaitAnswers() const {
  constexpr double kPatience = 1, kPause = 0.01;
  const FlightMemory& memory = setup_.recorder->Memory();
  for (double waited = 0; waited < kPatience; waited += kPause) {
    bool all = true;
    for (int rank = 0; rank < memory.ranks; ++rank) {
      const RankSlot& slot = memory.slots[rank];
      const char letter = LookAt(slot.pid.load()).letter;
      all = all && (slot.answered.load() || IsGone(letter) || IsStopped(letter));
    }
    if (all) return;
    Sleep(kPause);
  }
}

std::string Watchdog::Place() const {
  const std::lock_guard lock(mutex_);
  return folder_ + "/hang/" + setup_.session;
}

// at_once: whoever started the job may end it any moment, since a process of it is gone.
void Watchdog::Lead(const std::string& reason, bool at_once) {
  if (!at_once) {
    WriteOwnStack();
    AwaitAnswers();
  }
  Round round = {.place = Place(),
                 .node = node_,
                 .nodes = at_once ? 1 : node_count_,
                 .reason = reason,
                 .own = ReadTables(setup_.recorder->Memory(), setup_.hosts)};
  const Outcome outcome = Consult(round);
  if (!outcome.judged_elsewhere) {
    std::function<void(const HangReport&)> told;
    {
      const std::lock_guard lock(mutex_);
      told = told_;
    }
    const std::vector<SilentNode> silent = SilentOf(round, outcome, setup_.hosts, setup_.nodes);
    SayVerdict(round, outcome, silent, told);
  }
  EndNode();
}

// Stopped ranks go on, see that it is over, and end by themselves, with code 1.
void Watchdog::EndNode() {
  constexpr double kPatience = 1.5, kPause = 0.01;
  FlightMemory& memory = setup_.recorder->Memory();
  memory.node->over.store(true);
  const auto each_other = [&](auto visit) {
    for (int rank = 0; rank < memory.ranks; ++rank) {
      const RankSlot& slot = memory.slots[rank];
      const ProcessState state = LookAt(slot.pid.load());
      const bool same =
          state.letter == '?' || (state.started == slot.started.load() && !IsGone(state.letter));
      if (rank != memory.rank && same) visit(slot.pid.load(), state.letter);
    }
  };
  each_other([](int pid, char letter) {
    if (IsStopped(letter)) ::kill(pid, SIGCONT);
  });
  for (double waited = 0; waited < kPatience; waited += kPause) {
    bool alone = true;
    each_other([&](int, char) { alone = false; });
    if (alone) break;
    Sleep(kPause);
  }
  each_other([](int pid, char) { ::kill(pid, SIGKILL); });
  ::_exit(1);
}

}  // namespace trireme::comm
