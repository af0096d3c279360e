// Cores and hardware threads as Linux and OpenMP describe them, and binding of threads.
#include "trireme/device/cores.hpp"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

namespace trireme::device {

namespace fs = std::filesystem;

namespace {

// The first number in a system file; `otherwise` if there is none.
int FirstNumber(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? number : otherwise;
}

bool Bind(std::span<const int> numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int number : numbers) CPU_SET(number, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace

std::vector<int> UsableNumbers() {
  // If OpenMP was told to place threads, this thread is bound to its own place only, so ask OpenMP.
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

std::vector<HardwareThread> DescribeThreads(std::span<const int> numbers,
                                            const std::string& system) {
  std::vector<std::tuple<int, int, int>> found;  // package, core, number
  for (const int number : numbers) {
    const std::string topology = fmt::format("{}/cpu{}/topology/", system, number);
    // A list in ascending order: "0,64" or "0-1".
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
      if (Bind({&number, 1})) {
        pinned = number;
      } else {
        all = false;
      }
    }
  }
  return all;
}

void BindThisThread(std::span<const int> numbers) { Bind(numbers); }

// Control groups of both versions, as files below /sys/fs/cgroup.

void ForEachGroup(const std::string& controller, const std::string& proc,
                  const std::string& cgroups,
                  const std::function<void(const std::string& folder, int version)>& visit) {
  const auto up = [&](fs::path group, const fs::path& root, int version) {
    for (;; group = group.parent_path()) {
      visit(group.string(), version);
      if (group == root || !group.has_relative_path()) return;
    }
  };
  const std::string first_version = cgroups + "/" + controller;
  up(cgroups, cgroups, 2);
  up(first_version, first_version, 1);
  // Lines "hierarchy:controllers:path".
  std::ifstream file(proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (second == first + 1) {
      up(cgroups + path, cgroups, 2);
    } else if (controllers.find("," + controller + ",") != std::string::npos) {
      up(first_version + path, first_version, 1);
    }
  }
}

double CpuQuota(const std::string& proc, const std::string& cgroups) {
  double least = 0;
  ForEachGroup("cpu", proc, cgroups, [&](const std::string& group, int version) {
    double quota = 0, period = 0;  // in microseconds; "max" or -1: no quota
    if (version == 2) {
      std::ifstream file(group + "/cpu.max");
      if (!(file >> quota >> period)) return;
    } else {
      std::ifstream of_quota(group + "/cpu.cfs_quota_us"), of_period(group + "/cpu.cfs_period_us");
      if (!(of_quota >> quota && of_period >> period)) return;
    }
    if (quota <= 0 || period <= 0) return;
    least = least == 0 ? quota / period : std::min(least, quota / period);
  });
  return least;
}

}  // namespace trireme::device
