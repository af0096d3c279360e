// Watchdog: ends a job in which nothing comes forward any more, with a message that names who holds
// it up. A thread per rank; no messages, no heartbeat, no MPI.
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

// Findings of a watchdog, for the run's records.
struct HangReport {
  int rank = 0;  // the first that holds others up; -1: none stands out
  std::string host;
  std::int64_t step = 0;
  std::string text;  // as it was printed
};

// When this rank's own thread has entered and left no call for longer than its bound, one watchdog
// of each node writes the records of its node's ranks, those of stopped and dead ones too, to
// FOLDER/hang/SESSION/node_<k>.json; the lowest live node reads all files and prints the verdict;
// then every process ends with code 1. A rank of the node that is gone without having said so ends
// the job at once. Time in which the watchdog itself did not run does not count: a job that was
// suspended as a whole goes on.
class Watchdog {
 public:
  struct Setup {
    FlightRecorder* recorder = nullptr;  // of this rank; outlives the watchdog
    Hosts hosts;
    std::vector<std::int32_t> nodes;  // of world rank 0, 1, ..., numbers from 0
    std::vector<int> cores;           // permitted to the thread
    std::string session;              // the same on all ranks: name of this start of the job
  };
  // On the thread that calls MPI, which is the one that is watched.
  explicit Watchdog(Setup setup);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // From now on at most `seconds` may pass without progress; this counts as some. The first call
  // starts the thread. Cheap.
  void Arm(Phase phase, std::int64_t step, double seconds);
  void Disarm();
  bool Started() const { return thread_.joinable(); }
  // The folder of the reports, made when there is one to write; the current one until this is
  // called.
  void WriteInto(const std::string& folder);
  // Called on the watchdog's thread of the one process that prints the verdict.
  void OnVerdict(std::function<void(const HangReport&)> told);

 private:
  void Watch(const std::stop_token& stop);
  bool Expired(double elapsed);
  bool SessionHasFiles();
  int GoneNeighbour() const;
  void FindVisible();
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
  std::vector<bool> visible_;  // [ranks of the node]: this process can see that one in /proc
  std::atomic<double> bound_ = 0;
  std::atomic<std::int64_t> armed_ = 0;  // counts Arm and Disarm
  double idle_ = 0, looked_ = 0;         // of the thread
  std::int64_t seen_progress_ = -1, seen_armed_ = 0;
  struct Files {
    std::atomic<bool> asked = false, found = false;
  };
  const std::shared_ptr<Files> files_ = std::make_shared<Files>();  // of this session, by a node
  mutable std::mutex mutex_;                                        // of all below
  std::condition_variable_any wake_;
  std::string folder_ = ".";
  std::function<void(const HangReport&)> told_;
  std::jthread thread_;
};

}  // namespace trireme::comm
