// Cores that a process may use, and OpenMP threads on cores of their own.
#ifndef TRIREME_DEVICE_CORES_HPP_
#define TRIREME_DEVICE_CORES_HPP_

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

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_CORES_HPP_
