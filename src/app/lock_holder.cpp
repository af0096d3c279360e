// Holders of a run folder: their description, and the proof that one is gone.
#include "lock_holder.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "small_file.hpp"
#include "squeue.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::app {

namespace {

constexpr std::size_t kLongestValue = 256;  // of a lock's texts; the longest host name has 64

// First line of a file of the system; empty if there is none.
std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Text that a lock file and a message can carry: anything else becomes '?'.
std::string Printable(std::string text) {
  text.resize(std::min(text.size(), kLongestValue));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

std::string LinkOf(const char* path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

struct ProcessState {
  char state = 0;             // 'Z': ended, its parent has not looked yet
  std::int64_t threads = 0;   // not ended
  std::int64_t started = -1;  // clock ticks since the boot
};

// State of a process from /proc; none if it cannot be read.
std::optional<ProcessState> StateOf(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::stringstream text;
  text << file.rdbuf();
  const std::string line = text.str();
  // Field 2 is the program's name in parentheses, which may hold any character.
  const std::size_t name_end = line.rfind(')');
  if (!file || name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessState process;
  std::string skipped;
  fields >> process.state;  // field 3
  for (int field = 4; field < 20; ++field) fields >> skipped;
  fields >> process.threads >> skipped >> process.started;  // fields 20, 21, 22
  if (!fields) return std::nullopt;
  return process;
}

// False if no such process is there any more. Asks kill(2) first: /proc may hide the processes of
// other users.
bool Runs(const Holder& holder) {
  if (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) return false;
  const std::optional<ProcessState> process = StateOf(holder.pid);
  if (!process) return true;
  if (process->started != holder.started) return false;  // another process with its number
  // A killed process that still has threads is inside a system call: writing, perhaps.
  return process->state != 'Z' || process->threads > 1;
}

std::string NewToken() {
  std::array<unsigned char, kTokenDigits / 2> bytes = {};
  if (Retry([&] { return ::getrandom(bytes.data(), bytes.size(), 0); }) !=
      static_cast<ssize_t>(bytes.size())) {
    throw RunError("run lock: the system gives no random numbers: " + ErrorText(errno));
  }
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  std::array<char, 64> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text.data();
}

}  // namespace

bool IsToken(const std::string& text) {
  return text.size() == kTokenDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Holder ThisProcess(const BatchJob& job) {
  Holder self;
  std::array<char, kLongestValue> host = {};
  ::gethostname(host.data(), host.size() - 1);
  self.host = Printable(host.data());
  self.machine = Printable(FirstLine("/etc/machine-id"));
  self.boot = Printable(FirstLine("/proc/sys/kernel/random/boot_id"));
  self.namespaces = Printable(LinkOf("/proc/self/ns/pid") + " " + LinkOf("/proc/self/ns/time"));
  self.pid = ::getpid();
  if (const auto process = StateOf(self.pid)) self.started = process->started;
  self.job = Printable(job.id);
  self.cluster = Printable(job.cluster);
  self.restarts = std::max(job.restarts, 0);
  self.since = UtcNow();
  self.token = NewToken();
  return self;
}

std::string Format(const Holder& holder) {
  const nlohmann::ordered_json object = {
      {"host", holder.host},       {"pid", holder.pid},         {"since", holder.since},
      {"job", holder.job},         {"cluster", holder.cluster}, {"restarts", holder.restarts},
      {"machine", holder.machine}, {"boot", holder.boot},       {"namespaces", holder.namespaces},
      {"started", holder.started}, {"token", holder.token}};
  return object.dump(1) + "\n";
}

std::optional<Holder> Parse(const std::string& text) {
  const auto json = deck::TryParseJson(text, kMostLockBytes);
  if (!json) return std::nullopt;
  try {
    const deck::JsonObject object(*json, "lock");
    Holder holder;
    for (const auto& [name, value] :
         {std::pair{"host", &holder.host}, std::pair{"since", &holder.since},
          std::pair{"job", &holder.job}, std::pair{"cluster", &holder.cluster},
          std::pair{"machine", &holder.machine}, std::pair{"boot", &holder.boot},
          std::pair{"namespaces", &holder.namespaces}, std::pair{"token", &holder.token}}) {
      *value = object.Text(name);
      if (*value != Printable(*value)) return std::nullopt;
    }
    holder.pid = object.Integer("pid", 1, std::numeric_limits<pid_t>::max());
    holder.restarts = object.Integer("restarts");
    holder.started = object.Integer("started");
    return IsToken(holder.token) ? std::optional(holder) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string Describe(const Holder& holder) {
  const std::string job = holder.job.empty() ? "" : fmt::format(", Slurm job {}", holder.job);
  return fmt::format("host {}{}, process {}, since {}", holder.host, job, holder.pid, holder.since);
}

Fate FateOf(const Holder& holder, const Holder& self) {
  const bool same_host =
      !self.host.empty() && holder.host == self.host && holder.machine == self.machine;
  if (same_host && !self.boot.empty() && !holder.boot.empty()) {
    // Two machines without an id may share a name: containers of both, say.
    if (holder.boot != self.boot && !self.machine.empty()) {
      return {.runs = false, .gone = "the host was started again since"};
    }
    if (holder.boot == self.boot && holder.namespaces == self.namespaces) {
      if (Runs(holder)) return {.runs = true, .gone = {}};
      return {.runs = false, .gone = "its process has ended"};
    }
  }
  // Numbers of jobs mean something within one cluster only.
  const bool same_cluster = !self.cluster.empty() && holder.cluster == self.cluster;
  if (!same_cluster || holder.job.empty()) return {};
  if (holder.job == self.job) {
    if (holder.restarts < self.restarts)
      return {.runs = false, .gone = "Slurm has started its job again"};
    return {};
  }
  return {.runs = false, .gone = WhyJobEnded(holder.job)};
}

}  // namespace trireme::app
