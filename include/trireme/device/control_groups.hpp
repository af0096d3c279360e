// Linux's control groups of this process.
#ifndef TRIREME_DEVICE_CONTROL_GROUPS_HPP_
#define TRIREME_DEVICE_CONTROL_GROUPS_HPP_

#include <filesystem>
#include <functional>
#include <string>

namespace trireme::device {

// Folders of the groups that limit this process's use of `controller` ("memory", "cpu"), each group
// and those above it, of both versions; some more than once, and some without files. From
// `proc`/self/cgroup; and the root, where a container often shows its own group.
void ForEachGroup(
    const std::string& controller, const std::string& proc, const std::string& cgroups,
    const std::function<void(const std::filesystem::path& folder, int version)>& visit);

// Processors that the groups' quotas allow, 1.5 say: cpu.max of version 2, cpu.cfs_quota_us of
// version 1, the least of all. 0: no quota.
double CpuQuota(const std::string& proc = "/proc", const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_CONTROL_GROUPS_HPP_
