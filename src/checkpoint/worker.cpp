// Worker: the thread's loop.
#include "worker.hpp"

#include <utility>

#include "trireme/device/cores.hpp"

namespace trireme::checkpoint {

Worker::Worker(std::vector<int> cores) : cores_(std::move(cores)) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    while (tasks_.size() > 1) tasks_.pop_back();
  }
  thread_.request_stop();
}

void Worker::Start() {
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void Worker::Queue(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

std::size_t Worker::Unfinished() const {
  const std::lock_guard lock(mutex_);
  return tasks_.size();
}

void Worker::Await(std::size_t most) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.size() <= most; });
}

void Worker::Finish() {
  if (const std::exception_ptr failure = TakeFailure()) std::rethrow_exception(failure);
}

std::exception_ptr Worker::TakeFailure() {
  Await();
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, nullptr);
}

bool Worker::Stopping() const { return thread_.get_stop_token().stop_requested(); }

void Worker::Run(const std::stop_token& stop) {
  if (!cores_.empty()) device::BindThisThread(cores_);
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !tasks_.empty(); })) {
    if (stop.stop_requested()) return;
    // A failure drops the tasks after it: they rest on what it did not do.
    const bool skip = failure_ != nullptr;
    const std::function<void()> task = std::move(tasks_.front());
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (!skip) task();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) failure_ = failure;
    tasks_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace trireme::checkpoint
