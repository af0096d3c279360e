// The lock of a run folder.
//
// Protocol. A lock is a file that names its holder and carries a random token T. It is written
// under a name of its own, run.lock.T, synced, and put in place with link(2), which fails if the
// name exists. A lost reply of an NFS server reports a failure for a link that was made, so the
// outcome is read back: the place holds token T, or it does not.
//
//   run.lock              the first holder, token A
//   run.lock.after.A      a link to the lock of A's successor, token B
//   run.lock.after.B      ... and so on
//
// The holder is the last of this chain. A newcomer that can prove the last one gone links its lock
// to run.lock.after.<last>: of several newcomers that saw the same last one, one succeeds. It then
// reads the chain anew from run.lock; only if that ends at its own token has it won. At last it
// shortens the chain: it renames its own file over run.lock, and only then removes the links after
// older tokens. A newcomer that saw the chain before the renaming may still make run.lock.after.A
// once that name is free, but run.lock no longer holds A, so its second reading fails; it removes
// its link and starts again. A chain that ends with a killed newcomer is continued like any other.
//
// Why there is one holder: names within the chain are removed only after the holder has replaced or
// removed run.lock, and a token never comes back. So as long as run.lock holds A, run.lock.after.A
// is made once.
//
// A holder that is replaced although it runs (its lock was removed by hand, or Slurm started its
// job again while its node could not be reached) finds out through StillMine().
#include "trireme/app/run_lock.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "lock_holder.hpp"
#include "small_file.hpp"
#include "trireme/base/error.hpp"

namespace trireme::app {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kLongestChain = 1000;  // each link is a job that was killed while it started
constexpr int kMostAttempts = 1000;          // each failure is another job's success
// Errors of link(2) that other newcomers cause: the place is taken, or a new holder has cleaned up.
constexpr std::array<int, 4> kRaceErrors = {0, EEXIST, ENOENT, ESTALE};

std::string AfterName(const std::string& lock, const Holder& holder) {
  return lock + ".after." + holder.token;
}

// A lock of which nothing is known.
class Unreadable : public Error {
 public:
  explicit Unreadable(const Error& error) : Error(error.Code(), error.what()) {}
};

// A lock in a file; none if there is no file. Throws Unreadable, or InputError for anything else.
std::optional<Holder> ReadLock(const std::string& path, const std::string& lock) {
  const SmallFile file = ReadSmallFile(path, kMostLockBytes);
  if (!file.exists) return std::nullopt;
  std::optional<Holder> holder;
  if (file.fault.empty()) holder = Parse(file.text);
  if (!holder) {
    const std::string fault = !file.fault.empty() ? file.fault
                              : file.text.empty() ? "is empty"
                                                  : "is damaged";
    const Error error = InputError(
        fmt::format("{}: the lock of the run folder {}: another job may work there", path, fault),
        fmt::format("Make sure that no job uses the folder, then remove {}{}.", path,
                    path == lock ? "" : " and " + lock));
    if (file.unreadable) throw Unreadable(error);
    throw error;
  }
  return holder;
}

// Holders in the order of their succession; the last one counts. Empty: nobody holds the lock.
std::vector<Holder> ReadChain(const std::string& lock) {
  std::vector<Holder> chain;
  std::optional<Holder> next = ReadLock(lock, lock);
  while (next) {
    chain.push_back(*next);
    if (chain.size() > kLongestChain) {
      throw InputError(fmt::format("{}: the lock of the run folder has no end", lock),
                       fmt::format("Make sure that no job uses the folder, then remove {}.", lock));
    }
    next = ReadLock(AfterName(lock, chain.back()), lock);
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

// A newcomer's files. At the end of the scope its own name goes, and so does the link, unless it
// was kept.
class Claim {
 public:
  Claim(const std::string& lock, const Holder& self)
      : lock_(lock), own_(lock + "." + self.token), token_(self.token) {
    CreateDurably(own_, Format(self),
                  "Check the run folder's permissions and free space, or choose another "
                  "(job.output).");
  }
  ~Claim() {
    if (!place_.empty() && Holds(place_, lock_, token_)) ::unlink(place_.c_str());
    ::unlink(own_.c_str());
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // Tries to put the lock in place; returns an errno or 0, neither of them the evidence.
  int Put(const std::string& place) {
    place_ = place;
    return ::link(own_.c_str(), place.c_str()) == 0 ? 0 : errno;
  }
  void Keep() { place_.clear(); }
  const std::string& Own() const { return own_; }

 private:
  std::string lock_, own_, token_;
  std::string place_;  // of the link
};

// Makes `self`, the last of the chain, its only one. `older`: those before.
void Shorten(const std::string& lock, const std::vector<Holder>& older, const Claim& claim,
             const std::string& token) {
  const int error = ::rename(claim.Own().c_str(), lock.c_str()) == 0 ? 0 : errno;
  if (!Holds(lock, lock, token)) {
    throw RunError(fmt::format("{}: cannot be replaced: {}", lock, ErrorText(error)),
                   "Check the run folder's permissions and free space (job.output).");
  }
  for (const Holder& holder : older) ::unlink(AfterName(lock, holder).c_str());
}

// Removes what killed newcomers have left. Spares a successor's claim, which there is only if this
// process was taken for gone. Failures do no harm.
void RemoveLeftovers(const std::string& lock, const std::string& token) {
  const fs::path path(lock);
  const std::string prefix = path.filename().string() + ".";
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator item(path.parent_path(), error), end; !error && item != end;
       item.increment(error)) {
    const std::string name = item->path().filename();
    if (!name.starts_with(prefix) || name == prefix + "after." + token) continue;
    if (IsToken(name.substr(name.rfind('.') + 1))) leftovers.push_back(item->path());
  }
  for (const fs::path& leftover : leftovers) ::unlink(leftover.c_str());
}

Error HeldBy(const std::string& lock, const Holder& holder, const Holder& self, bool runs) {
  const std::string folder = fs::path(lock).parent_path();
  const std::string state =
      runs ? "" : fmt::format(" (host {} cannot tell whether it still runs)", self.host);
  return InputError(
      fmt::format("{}: another job {} this run folder: {}{}", folder,
                  runs ? "uses" : "may still use", Describe(holder), state),
      fmt::format("Wait until it has ended, end it, or choose another folder (job.output). If it "
                  "is known to be gone, remove {}.",
                  lock));
}

}  // namespace

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
  try {
    const std::vector<Holder> chain = ReadChain(path_);
    const bool mine = !chain.empty() && chain.back().token == token_;
    return mine ? Standing::kMine : Standing::kLost;
  } catch (const Unreadable& error) {
    if (why != nullptr) *why = error.what();
    return Standing::kUnknown;
  } catch (const Error&) {
    return Standing::kLost;
  }
}

// Tries once to take the lock; false if another newcomer interfered.
bool RunLock::Take(const BatchJob& job) {
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
  Claim claim(path_, self);
  const std::string place = chain.empty() ? path_ : AfterName(path_, chain.back());
  const int error = claim.Put(place);
  if (!StillMine()) {
    if (std::find(kRaceErrors.begin(), kRaceErrors.end(), error) != kRaceErrors.end()) return false;
    throw RunError(fmt::format("{}: cannot be linked: {}", place, ErrorText(error)),
                   "The run folder must be on a file system with hard links (job.output).");
  }
  if (!chain.empty()) Shorten(path_, chain, claim, token_);
  claim.Keep();
  return true;
}

}  // namespace trireme::app
