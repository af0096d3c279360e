// Worker: one thread that works through tasks in their order, beside the rank's own thread. Tasks
// must not call MPI.
#ifndef TRIREME_SRC_CHECKPOINT_WORKER_HPP_
#define TRIREME_SRC_CHECKPOINT_WORKER_HPP_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme::checkpoint {

class Worker {
 public:
  // cores: hardware threads that the thread may use; empty: those of the calling thread.
  explicit Worker(std::vector<int> cores);
  // Waits for the task under way, which Stopping() asks to end; drops those after it.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the thread, once, before the first task. Throws if the system has none to give.
  void Start();
  void Queue(std::function<void()> task);
  std::size_t Unfinished() const;  // tasks queued or under way
  bool Idle() const { return Unfinished() == 0; }
  // Waits until at most so many tasks are queued or under way.
  void Await(std::size_t most = 0);
  // Waits for all tasks, and throws what the first failed one threw. Tasks after it were dropped.
  void Finish();
  // The same, but returns it; null: none failed.
  std::exception_ptr TakeFailure();
  // True if the thread is to end. Long tasks ask between two pieces.
  bool Stopping() const;

 private:
  void Run(const std::stop_token& stop);

  const std::vector<int> cores_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;  // the first one is under way
  std::exception_ptr failure_;
  std::jthread thread_;  // ends before the members above
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_WORKER_HPP_
