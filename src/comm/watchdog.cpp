// Watchdog: the thread that checks for progress, and the alarm.
#include "trireme/comm/watchdog.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <utility>

#include "flight_tables.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/device/cores.hpp"

namespace trireme::comm {

// ProcessState, read from /proc.

ProcessState LookAt(int pid) {
  const int file = ::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {.letter = errno == ENOENT || errno == ESRCH ? '-' : '?'};
  std::array<char, 1024> text{};
  const auto length = ::read(file, text.data(), text.size() - 1);
  const bool ended = length < 0 && errno == ESRCH;
  ::close(file);
  if (ended) return {};
  // The name in parentheses may contain anything; fields 3 and 22 follow the last parenthesis.
  const char* const end = length > 0 ? std::strrchr(text.data(), ')') : nullptr;
  if (end == nullptr) return {.letter = '?'};
  ProcessState state;
  long long started = 0;
  const int found = std::sscanf(end + 1,
                                " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                "%*s %*s %*s %lld",
                                &state.letter, &started);
  if (found != 2) return {.letter = '?'};
  state.started = started;
  return state;
}

bool IsGone(char letter) { return letter == '-' || letter == 'Z' || letter == 'X'; }
bool IsStopped(char letter) { return letter == 'T' || letter == 't'; }

std::string DescribeProcess(char letter) {
  if (IsGone(letter)) return "is gone: it was killed or has crashed";
  constexpr std::array<std::pair<char, const char*>, 7> kStates = {
      {{'T', "is stopped (SIGSTOP, or suspended with its job)"},
       {'t', "is stopped by a debugger"},
       {'D', "waits for a disk or a file system (state D)"},
       {'R', "is running"},
       {'?', "cannot be looked at"},
       {'S', "sleeps"},
       {'I', "sleeps"}}};
  for (const auto& [state, text] : kStates) {
    if (letter == state) return text;
  }
  return fmt::format("is in state {}", letter);
}

namespace {

constexpr double kShortestLook = 0.02, kLongestLook = 0.2;  // seconds between looks
constexpr double kLooksABound = 20;

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// A signal handler that records the frames; the thread that asked looks up the names.

constexpr std::size_t kStackBytes = 65536;
constexpr int kHandlersOwn = 2;  // frames: the handler, and the system's return from it

std::array<void*, kMostFrames> frames;
std::atomic<int> frame_count{-1};
alignas(64) std::array<char, kStackBytes> signal_stack;

int Signal() { return SIGRTMIN + 6; }

void NoteFrames(int) {
  const int error = errno;
  frame_count.store(::backtrace(frames.data(), kMostFrames), std::memory_order_release);
  errno = error;
}

std::string NameOf(void* frame) {
  Dl_info info{};
  if (::dladdr(frame, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", frame);
  const auto offset = [&](const void* base) {
    return static_cast<const char*>(frame) - static_cast<const char*>(base);
  };
  if (info.dli_sname == nullptr) {
    return fmt::format("{} +{:#x}", info.dli_fname, offset(info.dli_fbase));
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  return fmt::format("{} +{:#x}  {}", status == 0 ? plain.get() : info.dli_sname,
                     offset(info.dli_saddr), info.dli_fname);
}

// To be called on the thread whose stack will be read: installs the signal handler and a stack of
// its own for it, so that nothing below the thread's stack pointer is touched.
void PrepareOwnStack() {
  // The first call of backtrace loads a library, which a handler must not do.
  ::backtrace(frames.data(), kMostFrames);
  stack_t now{};
  ::sigaltstack(nullptr, &now);
  if ((now.ss_flags & SS_DISABLE) != 0) {
    stack_t own{};
    own.ss_sp = signal_stack.data();
    own.ss_size = signal_stack.size();
    ::sigaltstack(&own, nullptr);
  }
  struct sigaction action {};
  action.sa_handler = NoteFrames;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(Signal(), &action, nullptr);
}

// The stack of `thread`, one frame per line, or a note that the thread did not answer in time.
std::string TakeStack(pthread_t thread) {
  using std::chrono::milliseconds;
  frame_count.store(-1);
  ::pthread_kill(thread, Signal());
  for (int i = 0; i < 50 && frame_count.load(std::memory_order_acquire) < 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  const int count = frame_count.load(std::memory_order_acquire);
  if (count < 0) return "the thread does not answer: it is within a call of the system";
  std::string text;
  for (int i = kHandlersOwn; i < count; ++i) {
    text += NameOf(frames[static_cast<std::size_t>(i)]) + "\n";
  }
  return text;
}

// Meeting of all nodes' watchdogs through files, one per node, and the verdict.

namespace fs = std::filesystem;

// One alarm as one node sees it.
struct Round {
  std::string place;  // folder of the files
  int node = 0, nodes = 1;
  std::string reason;
  std::vector<RankTable> own;
};

struct Outcome {
  bool written = false;           // this node's file was written
  bool judged_elsewhere = false;  // a lower node has printed the verdict
  std::vector<RankTable> ranks;   // of all nodes whose files were read
  std::vector<bool> heard;        // [nodes]: whether the node's file was read
};

constexpr double kForFiles = 3;    // seconds for other nodes to write their files
constexpr double kForVerdict = 4;  // further seconds for a lower node to judge
constexpr double kForDisk = 2;     // seconds until a file system counts as hanging
constexpr double kBetweenLooks = 0.05;

std::string FileOf(const Round& round, int node) {
  return fmt::format("{}/node_{}.json", round.place, node);
}

// Writes the file whole or not at all.
bool WriteFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (!file) return false;
  fs::rename(temporary, path, error);
  return !error;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs `body` on a thread of its own and waits for it at most `seconds`, since it may never return.
// `body` must own what it touches.
void Within(double seconds, std::function<void()> body) {
  std::packaged_task<void()> task(std::move(body));
  const std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  done.wait_for(std::chrono::duration<double>(seconds));
}

struct Shared {
  Round round;
  std::mutex mutex;
  Outcome outcome;
};

bool AllHeard(const Outcome& outcome) { return std::ranges::count(outcome.heard, false) == 0; }

void ReadOthers(Shared& shared) {
  for (int node = 0; node < shared.round.nodes; ++node) {
    if (shared.outcome.heard[static_cast<std::size_t>(node)]) continue;
    const auto tables = FromText(ReadFile(FileOf(shared.round, node)));
    if (!tables) continue;
    const std::lock_guard lock(shared.mutex);
    shared.outcome.heard[static_cast<std::size_t>(node)] = true;
    shared.outcome.ranks.insert(shared.outcome.ranks.end(), tables->begin(), tables->end());
  }
}

bool LowerIsHeard(const Shared& shared) {
  const auto begin = shared.outcome.heard.begin();
  const auto end = begin + std::min(shared.round.node, shared.round.nodes);
  return std::find(begin, end, true) != end;
}

void Meet(Shared& shared) {
  std::error_code error;
  fs::create_directories(shared.round.place, error);
  const std::string text = ToText(shared.round.node, shared.round.reason, shared.round.own);
  const bool written = WriteFile(FileOf(shared.round, shared.round.node), text);
  {
    const std::lock_guard lock(shared.mutex);
    shared.outcome.written = written;
  }
  const double start = Seconds();
  while (!AllHeard(shared.outcome) && Seconds() - start < kForFiles) {
    ReadOthers(shared);
    if (LowerIsHeard(shared)) break;
    if (!AllHeard(shared.outcome)) Sleep(kBetweenLooks);
  }
  if (!LowerIsHeard(shared)) return;
  const double since = Seconds();
  while (!fs::exists(shared.round.place + "/verdict.txt", error) &&
         Seconds() - since < kForFiles + kForVerdict) {
    Sleep(kBetweenLooks);
  }
  const std::lock_guard lock(shared.mutex);
  shared.outcome.judged_elsewhere = fs::exists(shared.round.place + "/verdict.txt", error);
}

// Writes this node's file and, on the lowest live node, reads the others'. Returns within seconds
// even if the file system hangs.
Outcome Consult(const Round& round) {
  const auto shared = std::make_shared<Shared>();
  shared->round = round;
  shared->outcome.ranks = round.own;
  shared->outcome.heard.assign(static_cast<std::size_t>(round.nodes), false);
  const std::size_t own = round.nodes > 1 ? static_cast<std::size_t>(round.node) : 0;
  shared->outcome.heard[own] = true;
  if (round.nodes == 1) shared->round.nodes = 0;  // none to wait for
  const double patience = round.nodes == 1 ? kForDisk : kForFiles + kForVerdict;
  Within(patience, [shared] { Meet(*shared); });
  const std::lock_guard lock(shared->mutex);
  return shared->outcome;
}

std::vector<SilentNode> SilentOf(const Round& round, const Outcome& outcome, const Hosts& hosts,
                                 const std::vector<int>& nodes) {
  std::vector<SilentNode> silent;
  for (int node = 0; round.nodes > 1 && node < round.nodes; ++node) {
    if (outcome.heard[static_cast<std::size_t>(node)]) continue;
    SilentNode& lost = silent.emplace_back();
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
      if (nodes[rank] != node) continue;
      lost.host = hosts.Of(static_cast<int>(rank));
      lost.ranks.push_back(static_cast<int>(rank));
    }
  }
  return silent;
}

// Prints the verdict, calls `told`, and writes the verdict beside the files.
void SayVerdict(const Round& round, const Outcome& outcome, const std::vector<SilentNode>& silent,
                const std::function<void(const HangReport&)>& told) {
  const Verdict verdict = Judge(outcome.ranks, silent);
  std::string text = fmt::format("{}: {}{}", verdict.where, round.reason, verdict.text);
  text += outcome.written ? fmt::format("\n  Last calls and stacks of all ranks: {}", round.place)
                          : fmt::format("\n  {} could not be written.", round.place);
  const std::string line = "trireme: error: " + text + "\n";
  WriteAll(STDERR_FILENO, line);
  HangReport report = {.rank = -1, .host = {}, .step = verdict.step, .text = text};
  if (!verdict.culprits.empty()) {
    report.rank = verdict.culprits.front().rank;
    report.host = verdict.culprits.front().host;
  }
  Within(kForDisk, [report, told, place = round.place, line] {
    if (told) told(report);
    WriteFile(place + "/verdict.txt", line);
  });
}

}  // namespace

// The watchdog's thread.

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
  // Progress comes first, so that a shorter bound is never compared with the time before it.
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

void Watchdog::Watch(const std::stop_token& stop) {
  device::BindThisThread(setup_.cores);
  const FlightMemory& memory = setup_.recorder->Memory();
  for (int rank = 0; rank < memory.ranks; ++rank) {
    const RankSlot& slot = memory.slots[rank];
    const ProcessState state = LookAt(slot.pid.load());
    visible_.push_back(state.started != 0 && state.started == slot.started.load());
  }
  double last = Seconds();
  while (!stop.stop_requested()) {
    const double bound = bound_.load();
    const double look =
        bound > 0 ? std::clamp(bound / kLooksABound, kShortestLook, kLongestLook) : kLongestLook;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, stop, std::chrono::duration<double>(look), [] { return false; });
    }
    // Adds at most two intervals, because whoever stopped this process may have stopped all.
    const double now = Seconds();
    const double elapsed = std::min(now - std::exchange(last, now), 2 * look);
    if (stop.stop_requested()) return;
    if (memory.node->claim.load() != 0) Answer();
    if (!setup_.recorder->Mine().armed.load()) continue;
    if (const int gone = GoneNeighbour(); gone >= 0) {
      Alarm(fmt::format("a process of the job has ended by itself (process {})", gone), true);
    }
    if (Expired(elapsed)) {
      Alarm(fmt::format("nothing has progressed for {:.1f} s (run.hang_timeout)", idle_), false);
    }
    if (SessionHasFiles()) Alarm("another node has raised an alarm", false);
  }
}

// Whether the watched thread has made no progress for longer than its bound.
bool Watchdog::Expired(double elapsed) {
  RankSlot& mine = setup_.recorder->Mine();
  const double bound = bound_.load();  // read before the progress that it bounds
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

// Whether another node has raised an alarm. The node's first rank looks, once a second, after it
// has itself waited for long. A detached thread looks, since a file system may hang.
bool Watchdog::SessionHasFiles() {
  constexpr double kLong = 30;  // seconds; this node may be in a phase with a longer bound
  if (node_count_ == 1 || setup_.recorder->Memory().rank != 0) return false;
  if (files_->found.load()) return true;
  if (idle_ < std::min(bound_.load() / 2, kLong) || idle_ - looked_ < 1) {
    looked_ = std::min(looked_, idle_);
    return false;
  }
  looked_ = idle_;
  if (!files_->asked.exchange(true)) {
    std::thread([files = files_, place = Place()] {
      std::error_code error;
      if (fs::is_directory(place, error)) files->found.store(true);
      files->asked.store(false);
    }).detach();
  }
  return false;
}

// Process id of the next visible rank on this node if it has ended unannounced; else -1.
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

// Answers the node's leading watchdog, takes its place if that is lost, and ends the process.
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
      Lead("nothing progresses any more", false);
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

// at_once: do not ask other nodes, since a process is gone and the launcher may end the job soon.
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

// Wakes stopped ranks, lets all end by themselves with code 1, and kills those that do not.
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
