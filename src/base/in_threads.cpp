// InThreads, whose threads take each next i from a shared counter, and MemoryInfo.
#include "trireme/base/in_threads.hpp"

#include <algorithm>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

namespace trireme {

void InThreads(int threads, std::int64_t count,
               const std::function<void(std::int64_t i, int thread)>& body) {
  std::mutex mutex;
  std::int64_t next = 0, failed = count;  // failed: smallest i that failed, or count
  std::exception_ptr failure;
  const auto draw = [&] {
    const std::lock_guard lock(mutex);
    return failed < count ? count : next++;
  };
  const auto work = [&](int thread) {
    for (std::int64_t i = draw(); i < count; i = draw()) {
      try {
        body(i, thread);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i >= failed) continue;
        failed = i;
        failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < std::min<std::int64_t>(threads, count); ++thread) {
      others.emplace_back(work, thread);
    }
    work(0);
  }
  if (failure) std::rethrow_exception(failure);
}

std::optional<std::int64_t> MemoryInfo(const std::string& file, const std::string& name) {
  constexpr std::int64_t kKib = 1024;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "Node") words >> word >> word;  // skips the node's number
    std::int64_t kib = 0;
    if (word == name + ":" && words >> kib) return kib * kKib;
  }
  return std::nullopt;
}

}  // namespace trireme
