// Cores that a process may use, and binding OpenMP threads to them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace trireme::device {

// A unit on which the operating system schedules: a core, or one of several threads of a core.
struct HardwareThread {
  int number = 0;
  int core = 0;  // lowest number among this core's hardware threads
  bool operator==(const HardwareThread&) const = default;
};

// Numbers of the hardware threads to which this process is bound, ascending, never empty: from
// OpenMP's places if there are any, else from the calling thread's affinity.
std::vector<int> UsableNumbers();
// The same with their cores, sorted by package and core. system: folder in which Linux describes
// the processors; one without a description counts as a core of its own.
std::vector<HardwareThread> DescribeThreads(std::span<const int> numbers,
                                            const std::string& system = "/sys/devices/system/cpu");

// Whether the environment places OpenMP's threads: OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY.
bool ThreadsArePlaced();

// Binds OpenMP thread i of this thread's teams to hardware thread numbers[i]. Call it again from
// time to time, since OpenMP may replace threads; it costs next to nothing if nothing has changed.
// Returns false if the system refuses.
bool PinThreads(std::span<const int> numbers);

// Binds the calling thread to these hardware threads, as far as the system allows.
void BindThisThread(std::span<const int> numbers);

// Control groups of this process (Linux).

// Calls visit for the folder of each group that limits this process's use of `controller`
// ("memory", "cpu"), for all groups above it, and for the root, where a container often shows its
// own group (v1 and v2). Folders may come twice or lack files. Reads `proc`/self/cgroup.
void ForEachGroup(const std::string& controller, const std::string& proc,
                  const std::string& cgroups,
                  const std::function<void(const std::string& folder, int version)>& visit);

// Number of processors that the groups' quotas allow, e.g. 1.5: the least of cpu.max (version 2)
// and cpu.cfs_quota_us (version 1) of all groups. 0: no quota.
double CpuQuota(const std::string& proc = "/proc", const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace trireme::device
