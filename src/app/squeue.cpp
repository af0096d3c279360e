// Runs squeue within a time limit and reads its answer.
#include "squeue.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <sstream>
#include <thread>

#include "small_file.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::app {

namespace {

constexpr std::size_t kMostOutput = std::size_t{1} << 16;  // a line for each task of a job array
constexpr double kKilledSeconds = 1;  // within which a killed process is gone, unless it hangs
constexpr auto kReapInterval = std::chrono::milliseconds(5);

// States of jobs without processes. COMPLETING is none of them: its processes are being ended.
constexpr std::array<const char*, 9> kEnded = {"BOOT_FAIL", "CANCELLED",     "COMPLETED",
                                               "DEADLINE",  "FAILED",        "NODE_FAIL",
                                               "PREEMPTED", "OUT_OF_MEMORY", "TIMEOUT"};

struct Answer {
  int code = 0;        // exit code
  std::string output;  // standard output and error
};

// Starts `squeue` with its output going to `out`; returns its process, -1 if it cannot be started.
// posix_spawn copies no memory, so pages registered with the network stay valid.
pid_t StartSqueue(const std::string& id, int out) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, out, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Unblocks the signals that a run has blocked, and makes a group, which a time-out ends as a
  // whole.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::array<std::string, 6> words = {"squeue", "-h", "-j", id, "-o", "%T"};
  std::array<char*, 7> arguments = {};
  std::transform(words.begin(), words.end(), arguments.begin(),
                 [](std::string& word) { return word.data(); });
  pid_t child = -1;
  if (::posix_spawnp(&child, words[0].c_str(), &files, &attributes, arguments.data(), environ) != 0)
    child = -1;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return child;
}

// Reads until the writer ends; false if that does not happen before `end` or within kMostOutput.
bool ReadUntil(double end, int in, std::string& output) {
  std::array<char, 4096> buffer = {};
  while (output.size() <= kMostOutput) {
    pollfd item = {in, POLLIN, 0};
    const int left = static_cast<int>(std::max(0.0, (end - Seconds()) * 1000));
    const int ready = Retry([&] { return ::poll(&item, 1, left); });
    if (ready <= 0) return false;
    const ssize_t got = Retry([&] { return ::read(in, buffer.data(), buffer.size()); });
    if (got < 0) return false;
    if (got == 0) return true;
    output.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return false;
}

// Waits for the process; returns its status, none if it does not end before `end`.
std::optional<int> WaitUntil(double end, pid_t child) {
  int status = 0;
  while (true) {
    const pid_t ended = Retry([&] { return ::waitpid(child, &status, WNOHANG); });
    if (ended == child) return status;
    if (ended < 0 || Seconds() > end) return std::nullopt;
    std::this_thread::sleep_for(kReapInterval);
  }
}

std::optional<Answer> Ask(const std::string& id, double seconds) {
  std::array<int, 2> ends = {-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  const Descriptor in(ends[0]);
  Descriptor out(ends[1]);
  const double end = Seconds() + seconds;
  const pid_t child = StartSqueue(id, out.Get());
  out.Close();
  if (child < 0) return std::nullopt;
  Answer answer;
  std::optional<int> status;
  if (ReadUntil(end, in.Get(), answer.output)) status = WaitUntil(end, child);
  if (!status) {
    ::kill(-child, SIGKILL);
    WaitUntil(Seconds() + kKilledSeconds, child);
  }
  if (!status || !WIFEXITED(*status)) return std::nullopt;
  answer.code = WEXITSTATUS(*status);
  return answer;
}

}  // namespace

std::string WhyJobEnded(const std::string& id, double seconds) {
  if (id.empty() || id.find_first_not_of("0123456789") != std::string::npos) return {};
  const std::optional<Answer> answer = Ask(id, seconds);
  if (!answer) return {};
  if (answer->code != 0) {
    const bool unknown = answer->output.find("Invalid job id") != std::string::npos;
    return unknown ? fmt::format("Slurm no longer knows job {}", id) : "";
  }
  std::istringstream lines(answer->output);
  std::string state, last;
  while (lines >> state) {
    if (std::find(kEnded.begin(), kEnded.end(), state) == kEnded.end()) return {};
    last = state;
  }
  return last.empty() ? fmt::format("Slurm no longer lists job {}", id)
                      : fmt::format("Slurm says that job {} ended ({})", id, last);
}

}  // namespace trireme::app
