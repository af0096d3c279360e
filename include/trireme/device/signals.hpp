// Signals that ask a run to stop (finish the step, write a checkpoint, exit with code 3): SIGUSR1,
// SIGTERM, SIGINT and SIGHUP (terminal gone; not under nohup).
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace trireme::device {

// Blocks these signals, in all threads started later too, and lets one thread wait for them. A
// handler could interrupt a matrix product, and oneDNN's products keep data below the stack
// pointer, where a handler's frame would overwrite it.
class StopSignals {
 public:
  StopSignals();   // blocks them: construct it before any thread is started
  ~StopSignals();  // keeps them blocked: a late request must not kill a run that is ending
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // For training and its set-up: from now on signals are requests, but the second one other than
  // SIGUSR1 kills. announce: called by the waiting thread with the number of the first signal.
  void Watch(std::function<void(int signal)> announce = {});
  void Release();  // for tasks with nothing to save: signals end the process again
  // Hardware threads to which the process was bound at its start, before any thread was pinned.
  const std::vector<int>& UsableCores() const { return usable_; }
  bool Received() const { return received_; }  // on this rank, since Watch

 private:
  void Wait(const std::stop_token& stop);
  std::function<void(int)> announce_;
  std::vector<int> usable_;  // as the process was bound at its start
  std::atomic<bool> received_ = false;
  std::jthread watcher_;
};

}  // namespace trireme::device
