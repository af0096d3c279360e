// Cores that a process may use, and OpenMP threads on cores of their own.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace trireme::device {

// A unit that the operating system schedules on: a core, or one of several that share a core.
struct HardwareThread {
  int number = 0;
  int core = 0;  // lowest number among the hardware threads of the core
  bool operator==(const HardwareThread&) const = default;
};

// Numbers of the hardware threads that this process is bound to, rising, never empty: OpenMP's
// places if it has any, else the affinity of the calling thread.
std::vector<int> UsableNumbers();
// The same with their cores, sorted by package and core. `system`: Linux's description of the
// processors; a number without a description counts as a core of its own.
std::vector<HardwareThread> DescribeThreads(std::span<const int> numbers,
                                            const std::string& system = "/sys/devices/system/cpu");

// Whether the environment places OpenMP's threads: OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY.
bool ThreadsArePlaced();

// Binds OpenMP thread i of this thread's teams to hardware thread numbers[i]. Costs next to nothing
// if that is so already: call it again now and then, since OpenMP may end threads and start new
// ones. False if the system refuses.
bool PinThreads(std::span<const int> numbers);

// Binds the calling thread to these hardware threads, as far as the system allows.
void BindThisThread(std::span<const int> numbers);

// Linux's control groups of this process.

// Folders of the groups that limit this process's use of `controller` ("memory", "cpu"), each group
// and those above it, of both versions; some more than once, and some without files. From
// `proc`/self/cgroup; and the root, where a container often shows its own group.
void ForEachGroup(const std::string& controller, const std::string& proc,
                  const std::string& cgroups,
                  const std::function<void(const std::string& folder, int version)>& visit);

// Processors that the groups' quotas allow, 1.5 say: cpu.max of version 2, cpu.cfs_quota_us of
// version 1, the least of all. 0: no quota.
double CpuQuota(const std::string& proc = "/proc", const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace trireme::device
