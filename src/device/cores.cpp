// Cores and hardware threads as Linux and OpenMP describe them, and binding threads to them.
#include "trireme/device/cores.hpp"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <set>
#include <tuple>

namespace trireme::device {

std::vector<int> UsableNumbers() {
  // OpenMP confines this thread to its own place if it was told to place threads.
  std::set<int> numbers;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> ids(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    if (!ids.empty()) omp_get_place_proc_ids(place, ids.data());
    numbers.insert(ids.begin(), ids.end());
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (numbers.empty() && sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int number = 0; number < CPU_SETSIZE; ++number) {
      if (CPU_ISSET(number, &set)) numbers.insert(number);
    }
  }
  if (numbers.empty()) numbers.insert(0);
  return {numbers.begin(), numbers.end()};
}

namespace {

// The first number in a file of the system; `otherwise` if there is none.
int FirstNumber(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? number : otherwise;
}

bool Bind(const cpu_set_t& set) { return sched_setaffinity(0, sizeof set, &set) == 0; }

}  // namespace

std::vector<HardwareThread> DescribeThreads(std::span<const int> numbers,
                                            const std::string& system) {
  std::vector<std::tuple<int, int, int>> found;  // package, core, number
  for (const int number : numbers) {
    const std::string topology = fmt::format("{}/cpu{}/topology/", system, number);
    // A list in rising order, "0,64" or "0-1".
    const int core = FirstNumber(topology + "thread_siblings_list", number);
    found.emplace_back(FirstNumber(topology + "physical_package_id", 0), core, number);
  }
  std::sort(found.begin(), found.end());
  std::vector<HardwareThread> threads;
  for (const auto& [package, core, number] : found) threads.push_back({number, core});
  return threads;
}

bool ThreadsArePlaced() {
  const auto is_set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  return is_set("OMP_PROC_BIND") || is_set("OMP_PLACES") || is_set("GOMP_CPU_AFFINITY");
}

bool PinThreads(std::span<const int> numbers) {
  std::atomic<bool> all = true;
#pragma omp parallel num_threads(static_cast <int>(numbers.size()))
  {
    thread_local int pinned = -1;
    const int number = numbers[static_cast<std::size_t>(omp_get_thread_num())];
    if (pinned != number) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(number, &set);
      if (Bind(set)) {
        pinned = number;
      } else {
        all = false;
      }
    }
  }
  return all;
}

void BindThisThread(std::span<const int> numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int number : numbers) CPU_SET(number, &set);
  Bind(set);
}

}  // namespace trireme::device
