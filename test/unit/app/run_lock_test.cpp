// The lock of a run folder: who may take it over, races for it, proofs that its holder is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>
#include <random>
#include <set>

#include "folders.hpp"
#include "trireme/app/run_lock.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::app::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using trireme::test::FolderTest;
using trireme::test::ReadBytes;
using trireme::test::TemporaryFolder;
using trireme::test::WriteBytes;

// The lock of a run folder: who may take it over, who may not, and what is said.

const BatchJob kNoJob;
const BatchJob kJob = {.id = "4711", .cluster = "booster", .restarts = 1, .end_unix_seconds = {}};

class RunLockTest : public FolderTest {
 protected:
  void Put(const std::string& text, const std::string& name = "run.lock") {
    WriteBytes(In(name), text);
  }
  void Put(const Holder& holder) { Put(Format(holder)); }
  std::string Content() { return ReadBytes(lock_); }
  std::set<std::string> Names() {
    std::set<std::string> names;
    for (const auto& item : fs::directory_iterator(folder_)) names.insert(item.path().filename());
    return names;
  }
  // Message when the lock is refused; nothing in the folder may change.
  std::string Refusal(const BatchJob& job = kNoJob, ExitCode code = ExitCode::kBadInput) {
    const auto names = Names();
    std::string text = "taken";
    try {
      RunLock lock(folder_, job);
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), code);
      text = error.what();
    }
    EXPECT_EQ(Names(), names);
    return text;
  }
  // Expects that the lock is taken over; returns why.
  std::string TakenFrom(const BatchJob& job = kNoJob) {
    std::string from;
    {
      RunLock lock(folder_, job);
      EXPECT_TRUE(lock.StillMine());
      EXPECT_EQ(Names(), std::set<std::string>{"run.lock"});
      from = lock.TakenFrom();
    }
    EXPECT_EQ(Names(), std::set<std::string>{});
    return from;
  }

  std::string lock_ = In("run.lock");
};

// A process that holds the lock until it is killed.
class HoldingProcess {
 public:
  explicit HoldingProcess(const std::string& folder) {
    int ready[2];
    if (::pipe(ready) != 0) throw RunError("pipe failed");
    id_ = ::fork();
    if (id_ == 0) {
      try {
        RunLock lock(folder, kNoJob);
        if (::write(ready[1], "x", 1) == 1) ::pause();
      } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      _exit(1);
    }
    ::close(ready[1]);
    char byte = 0;
    good_ = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
  }
  ~HoldingProcess() {
    Kill();
    Reap();
  }
  bool Good() const { return good_; }
  pid_t Id() const { return id_; }
  // The process has ended, but its parent has not looked yet.
  void Kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOWAIT);
  }
  void Reap() {
    if (id_ > 0) ::waitpid(id_, nullptr, 0);
    id_ = -1;
  }

 private:
  pid_t id_ = -1;
  bool good_ = false;
};

// Puts a squeue of one's own first on PATH.
class FakeSqueue {
 public:
  explicit FakeSqueue(const std::string& script) {
    std::ofstream(folder_ / "squeue") << "#!/bin/sh\n" << script << "\n";
    fs::permissions(folder_ / "squeue", fs::perms::owner_all);
    ::setenv("PATH", (folder_.Path() + ":" + path_).c_str(), 1);
  }
  ~FakeSqueue() { ::setenv("PATH", path_.c_str(), 1); }
  FakeSqueue(const FakeSqueue&) = delete;
  FakeSqueue& operator=(const FakeSqueue&) = delete;

 private:
  TemporaryFolder folder_;
  std::string path_ = std::getenv("PATH");
};

TEST_F(RunLockTest, IsThereWhileItsHolderIs) {
  {
    RunLock lock(folder_, kJob);
    EXPECT_TRUE(lock.StillMine());
    EXPECT_EQ(lock.TakenFrom(), "");
    EXPECT_EQ(Names(), std::set<std::string>{"run.lock"});
    EXPECT_THAT(Content(), AllOf(HasSubstr("\"job\": \"4711\""), HasSubstr("\"since\": \"20")));
    EXPECT_THAT(Refusal(), AllOf(HasSubstr(folder_ + ": another job uses this run folder"),
                                 HasSubstr(ThisProcess(kNoJob).host), HasSubstr("Slurm job 4711"),
                                 HasSubstr(std::to_string(::getpid())), HasSubstr(" UTC"),
                                 HasSubstr("job.output"), HasSubstr("remove " + lock_)));
    EXPECT_TRUE(lock.StillMine());
  }
  EXPECT_EQ(Names(), std::set<std::string>{});
}

TEST_F(RunLockTest, IsRefusedWhileItsHolderLives) {
  HoldingProcess other(folder_);
  ASSERT_TRUE(other.Good());
  const std::string content = Content();
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("uses"), HasSubstr(std::to_string(other.Id()))));
  EXPECT_EQ(Content(), content);
}

TEST_F(RunLockTest, IsTakenOverAfterSigkill) {
  for (const bool reaped : {false, true}) {
    HoldingProcess other(folder_);
    ASSERT_TRUE(other.Good());
    const std::string id = std::to_string(other.Id());
    other.Kill();
    if (reaped) other.Reap();
    EXPECT_THAT(TakenFrom(), AllOf(HasSubstr("process " + id), HasSubstr("process has ended")));
  }
}

TEST_F(RunLockTest, IsTakenOverFromAProcessWhoseNumberIsAnothersNow) {
  Holder holder = ThisProcess(kNoJob);
  holder.started -= 1;
  Put(holder);
  EXPECT_THAT(TakenFrom(), HasSubstr("process has ended"));
}

TEST_F(RunLockTest, IsRefusedForProcessesThatCannotBeSeen) {
  const Holder self = ThisProcess(kNoJob);
  const auto refused = [&](const std::function<void(Holder&)>& change) {
    Holder holder = self;
    holder.pid = 1;  // another process, with another start
    change(holder);
    Put(holder);
    EXPECT_THAT(Refusal(kJob), AllOf(HasSubstr("may still use"), HasSubstr("cannot tell")));
  };
  refused([](Holder& holder) { holder.host += "x"; });
  refused([](Holder& holder) { holder.host += "x", holder.boot = "another"; });
  refused([](Holder& holder) { holder.namespaces = "pid:[1]"; });
  refused([](Holder& holder) { holder.machine += "x"; });
  refused([](Holder& holder) { holder.machine += "x", holder.boot = "another"; });
  refused([](Holder& holder) { holder.boot = "", holder.job = "4711"; });
}

TEST_F(RunLockTest, IsTakenOverIfTheHostWasStartedAgain) {
  Holder holder = ThisProcess(kNoJob);
  if (holder.machine.empty()) GTEST_SKIP() << "no /etc/machine-id";
  holder.boot = "00000000-0000-0000-0000-000000000000";
  holder.namespaces = "pid:[1]";
  Put(holder);
  EXPECT_THAT(TakenFrom(), HasSubstr("host was started again"));
}

// A holder on another host, in Slurm's job.
Holder Remote(const std::string& job, const std::string& cluster, std::int64_t restarts) {
  Holder holder = ThisProcess(kNoJob);
  holder.host = "node0123";
  holder.job = job;
  holder.cluster = cluster;
  holder.restarts = restarts;
  return holder;
}

TEST_F(RunLockTest, IsTakenOverByTheSameJobQueuedAgain) {
  const FakeSqueue none("exit 3");
  Put(Remote("4711", "booster", 0));
  EXPECT_THAT(TakenFrom(kJob), HasSubstr("Slurm has started its job again"));
  for (const Holder& other : {Remote("4711", "booster", 1), Remote("4711", "booster", 2),
                              Remote("4711", "cluster", 0), Remote("4711", "", 0)}) {
    Put(other);
    EXPECT_THAT(Refusal(kJob), AllOf(HasSubstr("node0123"), HasSubstr("Slurm job 4711")));
  }
  Put(Remote("4711", "", 0));
  EXPECT_THAT(Refusal({.id = "4711", .cluster = "", .restarts = 1, .end_unix_seconds = {}}),
              HasSubstr("may still use"));
}

TEST_F(RunLockTest, AProcessThatRunsIsNotGoneWhateverSlurmSays) {
  const FakeSqueue ended("true");
  HoldingProcess other(folder_);
  ASSERT_TRUE(other.Good());
  Holder holder = *Parse(Content());
  holder.job = "12";
  holder.cluster = "booster";
  Put(holder);
  EXPECT_THAT(Refusal(kJob), HasSubstr("uses"));
}

TEST_F(RunLockTest, BelievesSqueueThatAJobHasEnded) {
  const char* const unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1";
  for (const auto& [script, why] :
       {std::pair{unknown, "no longer knows job 12"}, std::pair{"true", "no longer lists job 12"},
        std::pair{"echo TIMEOUT", "job 12 ended (TIMEOUT)"},
        std::pair{"echo COMPLETED; echo NODE_FAIL", "job 12 ended (NODE_FAIL)"},
        std::pair{R"([ "$*" = '-h -j 12 -o %T' ] && echo CANCELLED)", "ended (CANCELLED)"}}) {
    const FakeSqueue squeue(script);
    Put(Remote("12", "booster", 0));
    EXPECT_THAT(TakenFrom(kJob), AllOf(HasSubstr("node0123"), HasSubstr(why)));
  }
}

TEST_F(RunLockTest, NothingElseThatSqueueSaysIsProof) {
  Put(Remote("12", "booster", 0));
  for (const char* script :
       {"echo RUNNING", "echo COMPLETING", "echo PENDING", "echo COMPLETED; echo RUNNING",
        "echo 'Unable to contact slurm controller' >&2; exit 1", "exit 1", "kill -9 $$",
        "echo COMPLETED; exit 1", "echo warning >&2", "yes COMPLETED"}) {
    const FakeSqueue squeue(script);
    EXPECT_THAT(Refusal(kJob), HasSubstr("Slurm job 12")) << script;
  }
  EXPECT_THAT(Refusal(kJob), HasSubstr("Slurm job 12"));  // no squeue on PATH
  const FakeSqueue ended("true");
  Put(Remote("12", "another", 0));
  EXPECT_THAT(Refusal(kJob), HasSubstr("Slurm job 12"));
  Put(Remote("12; true", "booster", 0));
  EXPECT_THAT(Refusal(kJob), HasSubstr("Slurm job 12; true"));
}

TEST_F(RunLockTest, WaitsForSqueueOnlyForAWhile) {
  const double start = Seconds();
  {
    const FakeSqueue silent("sleep 60; echo COMPLETED");
    EXPECT_EQ(WhyJobEnded("12", 0.2), "");
  }
  const FakeSqueue closed("echo COMPLETED; exec >&- 2>&-; sleep 60");
  EXPECT_EQ(WhyJobEnded("12", 0.2), "");
  EXPECT_LT(Seconds() - start, 20);
}

TEST_F(RunLockTest, ADamagedLockIsNoProof) {
  const std::string good = Format(Remote("1", "a", 0));
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::string token = "\"token\": \"";
  for (const std::string& text :
       {std::string(), std::string("garbage"), std::string("{}"), std::string("[1]"),
        std::string("null"), std::string(4000, '['), std::string("\0\xff\xfe", 3),
        good.substr(0, good.size() / 2), good + "x", replaced("\"pid\": ", "\"pid\": -"),
        replaced("\"pid\": ", "\"pid\": 1.5e"), replaced("\"pid\": ", "\"pid\": 99999999999"),
        replaced("\"host\": \"node0123\"", "\"host\": 7"), replaced("node0123", "\\u001b[2J"),
        replaced(token, token + "/"), replaced(token, token + "0"),
        std::string(10 * 1024 * 1024, 'x')}) {
    Put(text);
    EXPECT_THAT(Refusal(), AllOf(HasSubstr(lock_ + ": the lock of the run folder is "),
                                 HasSubstr("then remove " + lock_ + ".")))
        << text.substr(0, 1000);
  }
}

TEST_F(RunLockTest, ADamagedSuccessorIsNamedWithTheLock) {
  Holder gone = ThisProcess(kNoJob);
  gone.started -= 1;
  Put(gone);
  const std::string name = "run.lock.after." + gone.token;
  Put("", name);
  EXPECT_THAT(Refusal(), HasSubstr("remove " + In(name) + " and " + lock_ + "."));
}

TEST_F(RunLockTest, ALinkOrFolderInItsPlaceIsNotFollowed) {
  Holder gone = ThisProcess(kNoJob);
  gone.started -= 1;
  Put(Format(gone), "elsewhere");
  fs::create_symlink("elsewhere", lock_);
  EXPECT_THAT(Refusal(), HasSubstr("is a symbolic link"));
  fs::remove(lock_);
  fs::create_symlink("nowhere", lock_);
  EXPECT_THAT(Refusal(), HasSubstr("is a symbolic link"));
  fs::remove(lock_);
  fs::create_directory(lock_);
  EXPECT_THAT(Refusal(), HasSubstr("is not a plain file"));
  fs::remove(lock_);
  ASSERT_EQ(::mkfifo(lock_.c_str(), 0600), 0);
  EXPECT_THAT(Refusal(), HasSubstr("is not a plain file"));
}

TEST_F(RunLockTest, IsNotReadableByOthers) {
  fs::permissions(folder_, fs::perms::all);
  RunLock lock(folder_, kNoJob);
  const Locked closed(lock_, 0);
  ASSERT_TRUE(closed.Good());
  EXPECT_THAT(Refusal(), HasSubstr("cannot be read: Permission denied"));
  std::string why;
  EXPECT_EQ(lock.Look(&why), RunLock::Standing::kUnknown);
  EXPECT_THAT(why, HasSubstr("run.lock"));
}

TEST_F(RunLockTest, AReadOnlyFolderIsAFailure) {
  const Locked closed(folder_, 0555);
  ASSERT_TRUE(closed.Good());
  EXPECT_THAT(Refusal(kNoJob, ExitCode::kFailed),
              AllOf(HasSubstr(lock_), HasSubstr("cannot be created: Permission denied"),
                    HasSubstr("job.output")));
}

TEST_F(RunLockTest, IsNoLongerMineOnceRemovedOrReplaced) {
  RunLock lock(folder_, kNoJob);
  const std::string content = Content();
  fs::remove(lock_);
  EXPECT_EQ(lock.Look(), RunLock::Standing::kLost);
  Put(content);
  EXPECT_TRUE(lock.StillMine());
  Put("garbage");
  EXPECT_EQ(lock.Look(), RunLock::Standing::kLost);
  Put(content);
  // A successor's claim counts before its last step.
  const std::string after = "run.lock.after." + Parse(content)->token;
  Put(Format(ThisProcess(kNoJob)), after);
  EXPECT_FALSE(lock.StillMine());
  fs::remove(In(after));
  EXPECT_TRUE(lock.StillMine());
}

TEST_F(RunLockTest, DoesNotReleaseTheLockOfAnother) {
  const std::string other = Format(ThisProcess(kNoJob));
  {
    RunLock lock(folder_, kNoJob);
    fs::remove(lock_);
    Put(other);
  }
  EXPECT_EQ(Content(), other);
}

TEST_F(RunLockTest, AForkedProcessDoesNotReleaseIt) {
  auto lock = std::make_unique<RunLock>(folder_, kNoJob);
  const pid_t child = ::fork();
  if (child == 0) {
    lock.reset();
    _exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(lock->StillMine());
}

TEST_F(RunLockTest, CleansUpAfterKilledNewcomers) {
  const Holder one = ThisProcess(kNoJob), two = ThisProcess(kNoJob);
  Put(Format(one), "run.lock." + one.token);
  Put("", "run.lock." + two.token);
  Put(Format(one), "run.lock.after." + two.token);
  Put("a user's", "run.lock.txt");
  RunLock lock(folder_, kNoJob);
  EXPECT_EQ(Names(), (std::set<std::string>{"run.lock", "run.lock.txt"}));
}

TEST_F(RunLockTest, ContinuesAChainOfKilledNewcomers) {
  Holder first = ThisProcess(kNoJob), second = ThisProcess(kNoJob);
  first.started -= 1;
  second.started -= 2;
  second.host = "node0123";
  Put(first);
  Put(Format(second), "run.lock.after." + first.token);
  EXPECT_THAT(Refusal(), HasSubstr("node0123"));  // the last one counts
  second.host = first.host;
  Put(Format(second), "run.lock.after." + first.token);
  EXPECT_THAT(TakenFrom(), HasSubstr("process has ended"));
}

// The lock of a run folder under processes that race for it and are killed at any moment.

constexpr int kRacers = 4;

// Memory that forked processes share.
template <typename Type>
class Shared {
 public:
  Shared()
      : value_(new (::mmap(nullptr, sizeof(Type), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Type) {}
  ~Shared() { ::munmap(value_, sizeof(Type)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  Type* operator->() { return value_; }

 private:
  Type* value_;
};

void Wait(std::mt19937& random, int most_microseconds) {
  ::usleep(std::uniform_int_distribution<useconds_t>(
      0, static_cast<useconds_t>(most_microseconds))(random));
}

struct Race {
  std::atomic<int> ready = 0, go = 0, won = 0, refused = 0, failed = 0;
};

// One process: takes the lock when told and keeps it until all have tried.
[[noreturn]] void Run(const std::string& folder, Shared<Race>& race, unsigned seed) {
  std::mt19937 random(seed);
  ++race->ready;
  while (race->go == 0) ::usleep(1);
  Wait(random, 300);
  try {
    RunLock lock(folder, {});
    ++race->won;
    while (race->won + race->refused + race->failed < kRacers) ::usleep(50);
    if (!lock.StillMine()) ++race->failed;
  } catch (const Error& error) {
    const bool held = std::string(error.what()).find("uses this run folder") != std::string::npos;
    ++(held ? race->refused : race->failed);
    if (!held) std::fprintf(stderr, "%s\n", error.what());
  }
  _exit(0);
}

// Lets processes race for a lock that `lock` (empty: no lock) holds.
void RaceFor(const std::string& lock, int rounds) {
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    const TemporaryFolder run;
    if (!lock.empty()) std::ofstream(run / "run.lock") << lock;
    Shared<Race> race;
    std::array<pid_t, kRacers> racers = {};
    for (int racer = 0; racer < kRacers; ++racer) {
      racers[static_cast<std::size_t>(racer)] = ::fork();
      if (racers[static_cast<std::size_t>(racer)] == 0) {
        Run(run.Path(), race, static_cast<unsigned>(round * kRacers + racer));
      }
    }
    while (race->ready < kRacers) ::usleep(50);
    race->go = 1;
    for (const pid_t racer : racers) ::waitpid(racer, nullptr, 0);
    EXPECT_EQ(race->won, 1);
    EXPECT_EQ(race->refused, kRacers - 1);
    EXPECT_EQ(race->failed, 0);
    EXPECT_TRUE(fs::is_empty(run.Path()));
  }
}

TEST(RunLockRace, OneOfManyTakesAFreeFolder) { RaceFor("", 50); }

TEST(RunLockRace, OneOfManyTakesOver) {
  Holder gone = ThisProcess({});
  gone.started -= 1;
  RaceFor(Format(gone), 100);
}

struct Turmoil {
  std::atomic<pid_t> holder = 0;
  std::array<std::atomic<bool>, 4194305> killed = {};  // by process number, up to Linux's largest
  std::atomic<int> taken = 0, taken_over = 0, wrong = 0;
};

// One process: takes and leaves the lock until it is killed.
[[noreturn]] void Work(const std::string& folder, Shared<Turmoil>& shared, unsigned seed) {
  std::mt19937 random(seed);
  const pid_t self = ::getpid();
  while (true) {
    try {
      RunLock lock(folder, {});
      ++shared->taken;
      if (!lock.TakenFrom().empty()) ++shared->taken_over;
      pid_t before = shared->holder.exchange(self);
      if (before != 0 && !shared->killed[static_cast<std::size_t>(before)]) ++shared->wrong;
      Wait(random, 500);
      if (!lock.StillMine()) ++shared->wrong;
      before = self;
      if (!shared->holder.compare_exchange_strong(before, 0)) ++shared->wrong;
    } catch (const Error& error) {
      if (std::string(error.what()).find("uses this run folder") == std::string::npos) {
        std::fprintf(stderr, "%s\n", error.what());
        ++shared->wrong;
      }
    }
    Wait(random, 500);
  }
}

TEST(RunLockRace, HasOneHolderAtATimeWhileProcessesAreKilled) {
  constexpr int kTakeOvers = 50;
  constexpr double kMostSeconds = 60;  // a busy machine needs a few
  const TemporaryFolder run;
  Shared<Turmoil> shared;
  std::mt19937 random(1);
  std::array<pid_t, kRacers> workers = {};
  unsigned seed = 0;
  const auto kill = [&](pid_t worker) {
    shared->killed[static_cast<std::size_t>(worker)] = true;
    ::kill(worker, SIGKILL);
    ::waitpid(worker, nullptr, 0);
  };
  const auto start = [&](pid_t& worker) {
    worker = ::fork();
    if (worker == 0) Work(run.Path(), shared, ++seed);
    ++seed;
    shared->killed[static_cast<std::size_t>(worker)] = false;
  };
  for (pid_t& worker : workers) start(worker);
  const double end = Seconds() + kMostSeconds;
  while (shared->taken_over < kTakeOvers && shared->wrong == 0 && Seconds() < end) {
    Wait(random, 10000);
    // Every other time the holder, if there is one just now.
    pid_t* worker = &workers[random() % kRacers];
    pid_t* const holder = std::find(workers.begin(), workers.end(), shared->holder.load());
    if (holder != workers.end() && random() % 2 == 0) worker = holder;
    kill(*worker);
    start(*worker);
  }
  for (const pid_t worker : workers) kill(worker);
  EXPECT_EQ(shared->wrong, 0);
  EXPECT_GE(shared->taken_over, kTakeOvers);
  EXPECT_GT(shared->taken, shared->taken_over);
  {
    const RunLock lock(run.Path(), {});
    EXPECT_TRUE(lock.StillMine());
    EXPECT_EQ(std::distance(fs::directory_iterator(run.Path()), {}), 1);
  }
  EXPECT_TRUE(fs::is_empty(run.Path()));
}

}  // namespace
}  // namespace trireme::app::test

namespace trireme::app {
namespace {

// Proofs that the holder of a run folder is gone, for descriptions of hosts that are not this one.

constexpr const char* kFirst = "11111111-1111-1111-1111-111111111111";
constexpr const char* kSecond = "22222222-2222-2222-2222-222222222222";

Holder On(const std::string& host, const std::string& machine, const std::string& boot) {
  Holder holder = ThisProcess({});
  holder.host = host;
  holder.machine = machine;
  holder.boot = boot;
  return holder;
}

TEST(LockHolder, ARestartedHostIsProvenByTheIdOfItsMachine) {
  EXPECT_EQ(FateOf(On("node", "a", kFirst), On("node", "a", kSecond)).gone,
            "the host was started again since");
  EXPECT_EQ(FateOf(On("node", "a", kFirst), On("node", "b", kSecond)).gone, "");
}

// Containers of two machines may have one host name and no /etc/machine-id.
TEST(LockHolder, TwoMachinesWithoutAnIdAreNotOne) {
  const Fate fate = FateOf(On("node", "", kFirst), On("node", "", kSecond));
  EXPECT_FALSE(fate.runs);
  EXPECT_EQ(fate.gone, "");
}

TEST(LockHolder, AProcessOfThisBootIsSeenWithoutAnId) {
  Holder holder = On("node", "", kFirst);
  const Holder self = On("node", "", kFirst);
  EXPECT_TRUE(FateOf(holder, self).runs);
  holder.started -= 1;
  EXPECT_EQ(FateOf(holder, self).gone, "its process has ended");
}

}  // namespace
}  // namespace trireme::app
