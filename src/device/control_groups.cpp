// Control groups of both versions, as files below /sys/fs/cgroup.
#include "trireme/device/control_groups.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace trireme::device {

namespace fs = std::filesystem;

namespace {

// Whether a list such as "cpu,cpuacct" names the controller.
bool Lists(const std::string& controllers, const std::string& controller) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == controller) return true;
  }
  return false;
}

}  // namespace

void ForEachGroup(const std::string& controller, const std::string& proc,
                  const std::string& cgroups,
                  const std::function<void(const fs::path& folder, int version)>& visit) {
  const auto up = [&](fs::path group, const fs::path& root, int version) {
    for (;; group = group.parent_path()) {
      visit(group, version);
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
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      up(cgroups + path, cgroups, 2);
    } else if (Lists(controllers, controller)) {
      up(first_version + path, first_version, 1);
    }
  }
}

double CpuQuota(const std::string& proc, const std::string& cgroups) {
  double least = 0;
  ForEachGroup("cpu", proc, cgroups, [&](const fs::path& group, int version) {
    double quota = 0, period = 0;  // microseconds; "max" or -1: no quota
    if (version == 2) {
      std::ifstream file(group / "cpu.max");
      if (!(file >> quota >> period)) return;
    } else {
      std::ifstream of_quota(group / "cpu.cfs_quota_us"), of_period(group / "cpu.cfs_period_us");
      if (!(of_quota >> quota && of_period >> period)) return;
    }
    if (quota <= 0 || period <= 0) return;
    least = least == 0 ? quota / period : std::min(least, quota / period);
  });
  return least;
}

}  // namespace trireme::device
