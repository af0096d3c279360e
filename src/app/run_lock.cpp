// The protocol of a run folder's lock. A lock is a file that names its holder and carries a random
// token T. It is written under a name of its own, run.lock.T, synced, and put in place with
// link(2), which fails if the name exists. If the reply of an NFS server is lost, link reports a
// failure although it succeeded; so the outcome is read back: the file in place has token T or not.
//
//   run.lock              the first holder, token A
//   run.lock.after.A      a link to the lock of A's successor, token B
//   run.lock.after.B      ... and so on
//
// The last of this chain is the holder. A newcomer that can prove it gone links its own lock to
// run.lock.after.<last>: of several newcomers that saw the same last lock, only one succeeds. It
// then reads the chain again from run.lock, and has won only if the chain ends at its own token.
// Finally it shortens the chain: it renames its own file over run.lock, and only then removes the
// links after older tokens. A newcomer that read the chain before the renaming may still make
// run.lock.after.A once that name is free, but run.lock no longer has token A, so its second
// reading fails; it removes its link and starts again. A chain that ends with a killed newcomer is
// continued in the same way.
//
// Why there is only one holder: links of the chain are removed only after the holder has replaced
// or removed run.lock, and no token is used twice. So run.lock.after.A is made only once while
// run.lock has token A. A holder that is replaced while it still runs (its lock was removed by
// hand, or Slurm requeued its job while its node could not be reached) finds out through
// StillMine().
#include "trireme/app/run_lock.hpp"

#include <fmt/chrono.h>
#include <signal.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <limits>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "site_deck.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::app {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTokenDigits = 32;
constexpr std::size_t kMostLockBytes = 8192;  // of a lock file, which has about 700
constexpr std::size_t kLongestValue = 256;    // of a lock's texts; host names have up to 64
constexpr std::size_t kLongestChain = 1000;   // each link is a job that was killed while starting
constexpr int kMostAttempts = 1000;  // each failed attempt means that another job succeeded
// Errors of link(2) due to others: a newcomer has taken the place, or the holder cleaned up.
constexpr std::array kRaceErrors = {0, EEXIST, ENOENT, ESTALE};

// The members of a lock file.
constexpr auto kTexts = std::to_array<std::pair<const char*, std::string Holder::*>>(
    {{"host", &Holder::host},
     {"since", &Holder::since},
     {"job", &Holder::job},
     {"cluster", &Holder::cluster},
     {"machine", &Holder::machine},
     {"boot", &Holder::boot},
     {"namespaces", &Holder::namespaces},
     {"token", &Holder::token}});
constexpr auto kNumbers = std::to_array<std::pair<const char*, std::int64_t Holder::*>>(
    {{"pid", &Holder::pid}, {"restarts", &Holder::restarts}, {"started", &Holder::started}});

// Cuts the text and replaces unprintable characters by '?', for lock files and messages.
std::string Printable(std::string text) {
  text.resize(std::min(text.size(), kLongestValue));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

// A process's state ('Z': ended, but its parent has not waited for it), number of threads that have
// not ended, and start in clock ticks since boot; from /proc. nullopt if it cannot be read.
struct ProcessState {
  char state = 0;
  std::int64_t threads = 0, started = -1;
};
std::optional<ProcessState> StateOf(std::int64_t pid) {
  const std::string line = FirstLine(fmt::format("/proc/{}/stat", pid), '\0');
  // Field 2 is the program's name in parentheses, which may hold any character.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  ProcessState process;
  std::string skipped;
  fields >> process.state;  // field 3
  for (int field = 4; field < 20; ++field) fields >> skipped;
  fields >> process.threads >> skipped >> process.started;  // fields 20, 21, 22
  return fields ? std::optional(process) : std::nullopt;
}

// False if the holder's process no longer exists. Asks kill(2), as /proc may hide processes.
bool Runs(const Holder& holder) {
  if (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) return false;
  const std::optional<ProcessState> process = StateOf(holder.pid);
  if (!process) return true;
  if (process->started != holder.started) return false;  // another process has this id now
  // A killed process that still has threads is inside a system call, and may be writing.
  return process->state != 'Z' || process->threads > 1;
}

bool IsToken(const std::string& text) {
  return text.size() == kTokenDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string AfterName(const std::string& lock, const Holder& holder) {
  return lock + ".after." + holder.token;
}

// The lock in the file `path`; nullopt if there is no file. Throws InputError if it cannot be read
// or is damaged. unreadable: whether it could not be read, so that nothing is known about it.
std::optional<Holder> ReadLock(const std::string& path, const std::string& lock,
                               bool* unreadable = nullptr) {
  const SmallFile file = ReadSmallFile(path, kMostLockBytes);
  if (!file.exists) return std::nullopt;
  if (file.fault.empty()) {
    if (auto holder = Parse(file.text)) return holder;
  }
  if (unreadable != nullptr) *unreadable = file.unreadable;
  const char* content = file.text.empty() ? "is empty" : "is damaged";
  const std::string fault = file.fault.empty() ? content : file.fault;
  throw InputError(
      fmt::format("{}: the lock of the run folder {}: another job may work there", path, fault),
      fmt::format("Make sure that no job uses the folder, then remove {}{}.", path,
                  path == lock ? "" : " and " + lock));
}

// All locks of the chain in order; the last one is the holder. Empty: nobody holds the lock.
std::vector<Holder> ReadChain(const std::string& lock, bool* unreadable = nullptr) {
  std::vector<Holder> chain;
  for (auto next = ReadLock(lock, lock, unreadable); next;
       next = ReadLock(AfterName(lock, chain.back()), lock, unreadable)) {
    chain.push_back(*next);
    if (chain.size() <= kLongestChain) continue;
    throw InputError(fmt::format("{}: the lock of the run folder is cut off", lock),
                     fmt::format("Make sure that no job uses the folder, then remove {}.", lock));
  }
  return chain;
}

bool Holds(const std::string& path, const std::string& lock, const std::string& token) {
  try {
    const std::optional<Holder> holder = ReadLock(path, lock);
    return holder && holder->token == token;
  } catch (const Error&) {
    return false;
  }
}

// Removes files that killed newcomers have left, but not a successor's link after `token`, which
// exists only if this process was believed gone. Failures do no harm.
void RemoveLeftovers(const std::string& lock, const std::string& token) {
  const fs::path path(lock);
  const std::string prefix = path.filename().string() + ".";
  for (const std::string& name : NamesIn(path.parent_path().string())) {
    if (!name.starts_with(prefix) || name == prefix + "after." + token) continue;
    if (!IsToken(name.substr(name.rfind('.') + 1))) continue;
    ::unlink((path.parent_path() / name).c_str());
  }
}

// "host a, Slurm job 12, process 34, since 2026-11-22 15:04:05 UTC".
std::string Describe(const Holder& holder) {
  const std::string job = holder.job.empty() ? "" : fmt::format(", Slurm job {}", holder.job);
  return fmt::format("host {}{}, process {}, since {}", holder.host, job, holder.pid, holder.since);
}

Error HeldBy(const std::string& lock, const Holder& holder, const Holder& self, bool runs) {
  const auto state =
      runs ? "" : fmt::format(" (host {} cannot tell whether it still runs)", self.host);
  return InputError(
      fmt::format("{}: another job {} this run folder: {}{}", FolderOf(lock),
                  runs ? "uses" : "may still use", Describe(holder), state),
      fmt::format("Wait until it has ended, end it, or choose another job.name or job.output. "
                  "If it is known to be gone, remove {}.",
                  lock));
}

}  // namespace

Holder ThisProcess(const BatchJob& job) {
  Holder self;
  std::array<char, kLongestValue> host = {};
  ::gethostname(host.data(), host.size() - 1);
  self.host = Printable(host.data());
  self.machine = Printable(FirstLine("/etc/machine-id"));
  self.boot = Printable(FirstLine("/proc/sys/kernel/random/boot_id"));
  std::error_code ignored;
  self.namespaces = Printable(fs::read_symlink("/proc/self/ns/pid", ignored).string() + " " +
                              fs::read_symlink("/proc/self/ns/time", ignored).string());
  self.pid = ::getpid();
  if (const auto process = StateOf(self.pid)) self.started = process->started;
  self.job = Printable(job.id);
  self.cluster = Printable(job.cluster);
  self.restarts = std::max(job.restarts, 0);
  self.since = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)));
  std::random_device random;
  while (self.token.size() < kTokenDigits) self.token += fmt::format("{:08x}", random());
  return self;
}

std::string Format(const Holder& holder) {
  nlohmann::ordered_json object;
  for (const auto& [name, text] : kTexts) object[name] = holder.*text;
  for (const auto& [name, number] : kNumbers) object[name] = holder.*number;
  return object.dump(1) + "\n";
}

std::optional<Holder> Parse(const std::string& text) {
  const auto json = deck::TryParseJson(text, kMostLockBytes);
  if (!json) return std::nullopt;
  try {
    const deck::JsonObject object(*json, "lock");
    Holder holder;
    for (const auto& [name, value] : kTexts) {
      holder.*value = object.Text(name);
      if (holder.*value != Printable(holder.*value)) return std::nullopt;
    }
    for (const auto& [name, value] : kNumbers) holder.*value = object.Integer(name);
    const bool process = holder.pid >= 1 && holder.pid <= std::numeric_limits<pid_t>::max();
    if (process && IsToken(holder.token)) return holder;
  } catch (const Error&) {  // a member is missing or has another type
  }
  return std::nullopt;
}

Fate FateOf(const Holder& holder, const Holder& self) {
  const bool same_host =
      !self.host.empty() && holder.host == self.host && holder.machine == self.machine;
  if (same_host && !self.boot.empty() && !holder.boot.empty()) {
    // Two machines without an id may share a name, for example containers on both.
    if (holder.boot != self.boot && !self.machine.empty()) {
      return {.gone = "the host was started again since"};
    }
    if (holder.boot == self.boot && holder.namespaces == self.namespaces) {
      return Runs(holder) ? Fate{.runs = true, .gone = ""} : Fate{.gone = "its process has ended"};
    }
  }
  // Job ids are unique only within a cluster.
  const bool same_cluster = !self.cluster.empty() && holder.cluster == self.cluster;
  if (!same_cluster || holder.job.empty()) return {};
  if (holder.job != self.job) return {.gone = WhyJobEnded(holder.job)};
  return {.gone = holder.restarts < self.restarts ? "Slurm has started its job again" : ""};
}

RunLock::RunLock(const std::string& folder, const BatchJob& job, bool new_folder)
    : path_(folder + "/run.lock"), process_(::getpid()) {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (!Take(job)) continue;
    if (!new_folder) RemoveLeftovers(path_, token_);
    return;
  }
  throw RunError(
      fmt::format("{}: other jobs took and left the lock {} times", path_, kMostAttempts),
      "Find out what starts them.");
}

RunLock::~RunLock() {
  if (::getpid() == process_ && StillMine()) ::unlink(path_.c_str());
}

RunLock::Standing RunLock::Look(std::string* why) const {
  bool unreadable = false;
  try {
    const std::vector<Holder> chain = ReadChain(path_, &unreadable);
    const bool mine = !chain.empty() && chain.back().token == token_;
    return mine ? Standing::kMine : Standing::kLost;
  } catch (const Error& error) {
    if (unreadable && why != nullptr) *why = error.what();
    return unreadable ? Standing::kUnknown : Standing::kLost;
  }
}

// Tries once to take the lock; false if another newcomer interfered. The outcome is read back,
// because results of link(2) and rename(2) are not reliable on NFS.
bool RunLock::Take(const BatchJob& job) {
  constexpr const char* kHint = "Check the run folder's permissions and free space (job.output).";
  const Holder self = ThisProcess(job);
  const std::vector<Holder> chain = ReadChain(path_);
  taken_from_.clear();
  if (!chain.empty()) {
    const Fate fate = FateOf(chain.back(), self);
    if (fate.gone.empty()) throw HeldBy(path_, chain.back(), self, fate.runs);
    taken_from_ =
        fmt::format("{}: taken over from {}: {}", path_, Describe(chain.back()), fate.gone);
  }
  token_ = self.token;
  const std::string own = path_ + "." + token_;
  const std::string place = chain.empty() ? path_ : AfterName(path_, chain.back());
  WriteTextDurably(own, Format(self), kHint);
  int error = ::link(own.c_str(), place.c_str()) == 0 ? 0 : errno;
  const bool last = StillMine();
  if (last && !chain.empty()) error = ::rename(own.c_str(), path_.c_str()) == 0 ? 0 : errno;
  const bool taken = last && (chain.empty() || Holds(path_, path_, token_));
  if (taken) {
    for (const Holder& holder : chain) ::unlink(AfterName(path_, holder).c_str());
  } else if (Holds(place, path_, token_)) {
    ::unlink(place.c_str());
  }
  ::unlink(own.c_str());
  if (last && !taken) {
    throw RunError(fmt::format("{}: cannot be replaced: {}", path_, ErrorText(error)), kHint);
  }
  if (taken || std::ranges::find(kRaceErrors, error) != kRaceErrors.end()) return taken;
  throw RunError(fmt::format("{}: cannot be linked: {}", place, ErrorText(error)),
                 "The run folder must be on a file system with hard links (job.output).");
}

}  // namespace trireme::app
