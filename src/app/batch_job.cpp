// The batch job: deadline, count of starts, Slurm's environment, and questions to squeue.
#include "trireme/app/batch_job.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>

#include "site_deck.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::app {

// Deadline.

Deadline::Deadline(std::optional<double> end_unix_seconds, double unix_now, double now) {
  if (end_unix_seconds) end_ = now + (*end_unix_seconds - unix_now);
}

void Deadline::Step(double seconds) {
  if (step_ > 0) later_step_ = std::max(later_step_, seconds);
  step_ = std::max(step_, seconds);
}

void Deadline::Checkpoint(double seconds) {
  checkpoint_ = std::max(checkpoint_.value_or(0), seconds);
}

void Deadline::Validation(double seconds) {
  validation_ = std::max(validation_.value_or(0), seconds);
}

double Deadline::Needed(bool validation_follows) const {
  double work = step_ + checkpoint_.value_or(expected_checkpoint_);
  if (validation_follows) work += validation_.value_or(expected_validation_);
  return kSafetyFactor * work + kFloorSeconds;
}

bool Deadline::MustStop(double now, bool validation_follows) const {
  return Left(now) < Needed(validation_follows);
}

// CountStart.

namespace {

constexpr std::size_t kMostBytes = 4096;

struct Note {
  std::int64_t step = 0;
  int starts = 0;
};

// The note of the last start; empty if the file is missing or damaged.
Note ReadNote(const std::string& path) {
  const auto noted = deck::TryParseJson(ReadSmallFile(path, kMostBytes).text, kMostBytes);
  if (!noted) return {};
  try {
    const deck::JsonObject object(*noted, path);
    constexpr int kMost = std::numeric_limits<int>::max() - 1;
    const auto starts = static_cast<int>(object.Integer("starts", 0, kMost));
    return {.step = object.Integer("step"), .starts = starts};
  } catch (const Error&) {
    return {};
  }
}

std::string PathIn(const std::string& folder) { return folder + "/restarts.json"; }

}  // namespace

int CountStart(const std::string& folder, std::int64_t step) {
  const std::string path = PathIn(folder);
  const Note before = ReadNote(path);
  const int starts = before.step == step ? before.starts + 1 : 1;
  const nlohmann::ordered_json object = {{"step", step}, {"starts", starts}};
  Replacement file(path, DraftName(path));
  file.Write(object.dump() + "\n");
  if (const std::error_code error = file.Place(Replacement::Name::kDurable)) {
    throw RunError(
        fmt::format("{0}: cannot be written by way of {0}.tmp: {1}", path, error.message()),
        "Check the run folder's permissions and free space (job.output).");
  }
  return starts;
}

void ForgetStarts(const std::string& folder) {
  std::error_code ignored;  // if removal fails, writing fails too, and CountStart throws
  std::filesystem::remove(PathIn(folder), ignored);
}

std::int64_t LastStart(const std::string& folder) { return ReadNote(PathIn(folder)).step; }

namespace {

constexpr std::size_t kLongestName = 128;  // of a cluster's name; Slurm's own limit is 40

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// The text as a number; nullopt if it contains anything else.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Unix seconds of a local time like 2026-11-22T15:04:05.
std::optional<double> ParseLocalTime(const std::string& text) {
  constexpr std::string_view kForm = "YYYY-MM-DDTHH:MM:SS";
  std::tm local = {};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &local);
  if (text.size() != kForm.size() || text.find(' ') != std::string::npos || end == nullptr ||
      *end != '\0') {
    return std::nullopt;
  }
  local.tm_isdst = -1;  // mktime finds out whether summer time applies
  const int month = local.tm_mon;
  const std::time_t seconds = std::mktime(&local);
  // mktime turns the 31st of a shorter month into a day of the next month.
  if (seconds == -1 || local.tm_mon != month) return std::nullopt;
  return static_cast<double>(seconds);
}

std::optional<double> ParseEnd(std::string_view text) {
  const std::optional<double> end = text.find_first_not_of("0123456789.") == std::string_view::npos
                                        ? ParseNumber<double>(text)
                                        : ParseLocalTime(std::string(text));
  // 0: Slurm's "unknown".
  return end && std::isfinite(*end) && *end > 0 ? end : std::nullopt;
}

}  // namespace

BatchJob ReadBatchJob() {
  BatchJob job;
  const std::string_view id = Variable("SLURM_JOB_ID");
  if (ParseNumber<std::uint64_t>(id)) job.id = id;
  const std::string_view cluster = Variable("SLURM_CLUSTER_NAME");
  const bool printable =
      std::all_of(cluster.begin(), cluster.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (printable && cluster.size() <= kLongestName) job.cluster = cluster;
  job.restarts = std::max(ParseNumber<int>(Variable("SLURM_RESTART_COUNT")).value_or(0), 0);
  job.end_unix_seconds = ParseEnd(Variable("SLURM_JOB_END_TIME"));
  if (!job.end_unix_seconds) job.end_unix_seconds = ParseEnd(Variable("TRIREME_JOB_END_TIME"));
  return job;
}

// WhyJobEnded: runs squeue within a time limit and reads its answer.

namespace {

constexpr std::size_t kMostOutput = std::size_t{1} << 16;  // bytes; a job array has many lines
constexpr std::size_t kBlock = 512;                        // bytes, the unit of ulimit -f

// States in which a job has no processes. COMPLETING is not one: its processes are still ending.
constexpr std::array<const char*, 9> kEnded = {"BOOT_FAIL", "CANCELLED",     "COMPLETED",
                                               "DEADLINE",  "FAILED",        "NODE_FAIL",
                                               "PREEMPTED", "OUT_OF_MEMORY", "TIMEOUT"};

// Starts a shell command with standard output and error to `out`. Returns its process id; -1 on
// failure. posix_spawn copies no memory, so pages registered with the network stay valid.
pid_t StartShell(std::string command, int out) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, out, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Unblocks the signals that a run has blocked.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::string shell = "sh", option = "-c";
  std::array<char*, 4> arguments = {shell.data(), option.data(), command.data(), nullptr};
  pid_t child = -1;
  if (::posix_spawnp(&child, "sh", &files, &attributes, arguments.data(), environ) != 0) child = -1;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return child;
}

struct Answer {
  int code = 0;        // exit code
  std::string output;  // standard output and error
};

// Asks squeue; nullopt if it does not end in time. `timeout` (coreutils) then kills the whole
// process group including itself, so that the wait ends even if squeue hangs in the kernel. The
// output goes to a file in memory, whose size the shell limits.
std::optional<Answer> Ask(const std::string& id, double seconds) {
  const Descriptor out(::memfd_create("squeue", MFD_CLOEXEC));
  if (!out.Valid()) return std::nullopt;
  const pid_t child =
      StartShell(fmt::format("ulimit -f {}; exec timeout -s KILL {} squeue -h -j {} -o %T",
                             kMostOutput / kBlock, seconds, id),
                 out.Get());
  int status = 0;
  if (child < 0 || Retry([&] { return ::waitpid(child, &status, 0); }) != child) return {};
  if (!WIFEXITED(status)) return std::nullopt;
  Answer answer{.code = WEXITSTATUS(status), .output = std::string(kMostOutput, '\0')};
  answer.output.resize(
      static_cast<std::size_t>(ReadAt(out.Get(), answer.output.data(), kMostOutput, 0)));
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
