// The lock of a run folder under processes that race for it and are killed at any moment.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <new>
#include <random>

#include "lock_holder.hpp"
#include "temporary_folder.hpp"
#include "trireme/app/run_lock.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::app::test {
namespace {

namespace fs = std::filesystem;
using trireme::test::TemporaryFolder;

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
