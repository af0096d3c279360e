// InThreads: a counter that threads draw from.
#include "trireme/base/in_threads.hpp"

#include <algorithm>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

namespace trireme {

namespace {

// The list as all threads see it.
class Draw {
 public:
  Draw(std::int64_t count, const std::function<void(std::int64_t, int)>& body)
      : count_(count), failed_(count), body_(body) {}

  void Work(int thread) {
    for (std::int64_t i = Next(); i < count_; i = Next()) {
      try {
        body_(i, thread);
      } catch (...) {
        Note(i, std::current_exception());
      }
    }
  }
  void Check() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::int64_t Next() {
    const std::lock_guard lock(mutex_);
    return failed_ < count_ ? count_ : next_++;
  }
  void Note(std::int64_t i, const std::exception_ptr& failure) {
    const std::lock_guard lock(mutex_);
    if (i >= failed_) return;
    failed_ = i;
    failure_ = failure;
  }

  const std::int64_t count_;
  std::mutex mutex_;
  std::int64_t next_ = 0;
  std::int64_t failed_;  // smallest i that failed; count_: none
  std::exception_ptr failure_;
  const std::function<void(std::int64_t, int)>& body_;
};

}  // namespace

void InThreads(int threads, std::int64_t count,
               const std::function<void(std::int64_t i, int thread)>& body) {
  Draw draw(count, body);
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < std::min<std::int64_t>(threads, count); ++thread) {
      others.emplace_back([&draw, thread] { draw.Work(thread); });
    }
    draw.Work(0);
  }
  draw.Check();
}

// MemoryInfo: line by line.

std::optional<std::int64_t> MemoryInfo(const std::string& file, const std::string& name) {
  constexpr std::int64_t kKib = 1024;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "Node") words >> word >> word;  // its number
    std::int64_t kib = 0;
    if (word == name + ":" && words >> kib) return kib * kKib;
  }
  return std::nullopt;
}

}  // namespace trireme
