// Watchdog: ends a job that no longer makes progress, with a message that names the ranks that hold
// it up. One thread per rank; it uses no MPI and no messages.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/hosts.hpp"

namespace trireme::comm {

// What a watchdog found, for the run's records.
struct HangReport {
  int rank = 0;  // the first rank that holds others up; -1: none stands out
  std::string host;
  std::int64_t step = 0;
  std::string text;  // as printed
};

// An alarm is raised when this rank's MPI thread makes no progress for longer than its bound, and
// at once when another rank of the node ends unannounced. Then one watchdog of each node writes the
// records of all its ranks, also of stopped and dead ones, to FOLDER/hang/SESSION/node_<k>.json;
// the lowest live node reads all files and prints the verdict; every process ends with code 1. Time
// in which the watchdog itself did not run does not count, so a job that was suspended as a whole
// continues.
class Watchdog {
 public:
  struct Setup {
    FlightRecorder* recorder = nullptr;  // this rank's; must outlive the watchdog
    Hosts hosts;
    std::vector<std::int32_t> nodes;  // [world ranks]: number of the rank's node
    std::vector<int> cores;           // on which the thread may run
    std::string session;              // name of this start of the job, the same on all ranks
  };
  // To be called on the thread that calls MPI, which is the one watched.
  explicit Watchdog(Setup setup);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Allows at most `seconds` without progress from now on; the call itself counts as progress.
  // Cheap; the first call starts the thread.
  void Arm(Phase phase, std::int64_t step, double seconds);
  void Disarm();
  bool Started() const { return thread_.joinable(); }
  // Sets the folder of the reports, which is created only when there is one; default: the working
  // directory.
  void WriteInto(const std::string& folder);
  // Sets the function that the process which prints the verdict calls, on its watchdog's thread.
  void OnVerdict(std::function<void(const HangReport&)> told);

 private:
  void Watch(const std::stop_token& stop);
  bool Expired(double elapsed);
  bool SessionHasFiles();
  int GoneNeighbour() const;
  [[noreturn]] void Alarm(const std::string& reason, bool at_once);
  [[noreturn]] void Answer();
  [[noreturn]] void Lead(const std::string& reason, bool at_once);
  [[noreturn]] void EndNode();
  void AwaitAnswers() const;
  void WriteOwnStack();
  std::string Place() const;

  const Setup setup_;
  const pthread_t watched_;
  const int node_, node_count_;
  // [ranks of the node]: whether this process sees that one in /proc; containers may share memory
  // but not process ids.
  std::vector<bool> visible_;
  std::atomic<double> bound_ = 0;
  std::atomic<std::int64_t> armed_ = 0;  // counts Arm and Disarm
  double idle_ = 0, looked_ = 0;         // seconds, on the watchdog's thread
  std::int64_t seen_progress_ = -1, seen_armed_ = 0;
  struct Files {
    std::atomic<bool> asked = false, found = false;
  };
  const std::shared_ptr<Files> files_ = std::make_shared<Files>();  // shared with detached threads
  mutable std::mutex mutex_;                                        // guards all members below
  std::condition_variable_any wake_;
  std::string folder_ = ".";
  std::function<void(const HangReport&)> told_;
  std::jthread thread_;
};

}  // namespace trireme::comm
