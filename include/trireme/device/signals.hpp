// SIGUSR1, SIGTERM, SIGINT and SIGHUP (the terminal is gone; not under nohup) ask a run to stop:
// finish the step, write a checkpoint, exit with code 3.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace trireme::device {

// Blocks the signals, also in every thread that is started later, and lets one thread wait for
// them. A handler could interrupt a matrix product, and oneDNN's products keep data below the stack
// pointer, where a handler's frame would land.
class StopSignals {
 public:
  StopSignals();   // blocks them: construct before anything starts a thread
  ~StopSignals();  // keeps them blocked: a late request must not kill a run that is ending
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Training, set-up included: from now on a signal is a request; a second one but SIGUSR1 kills.
  // announce: called with the first one's number, by the waiting thread.
  void Watch(std::function<void(int signal)> announce = {});
  void Release();  // other tasks have nothing to save: the signals end the process again
  // Hardware threads that the process was bound to at its start, before any thread was pinned.
  const std::vector<int>& UsableCores() const { return usable_; }
  bool Received() const { return received_; }  // on this rank, since Watch

 private:
  void Wait(const std::stop_token& stop);
  std::function<void(int)> announce_;
  std::vector<int> usable_;  // cores, as the process was bound
  std::atomic<bool> received_ = false;
  std::jthread watcher_;
};

}  // namespace trireme::device
