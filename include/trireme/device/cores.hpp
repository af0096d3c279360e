// The cores that a process may use, and OpenMP threads on cores of their own.
#ifndef TRIREME_DEVICE_CORES_HPP_
#define TRIREME_DEVICE_CORES_HPP_

#include <span>
#include <string>
#include <vector>

namespace trireme::device {

// One that the operating system schedules on: a core, or one of those that share its units.
struct HardwareThread {
  int number = 0;
  int core = 0;  // the lowest number among those that share the core
  bool operator==(const HardwareThread&) const = default;
};

// Numbers of what this process is bound to: OpenMP's places where it was told to place threads,
// else what the calling thread may run on. Rising, never empty.
std::vector<int> UsableNumbers();
// The same, by package and core. `system`: where Linux describes the processors; what it does not
// say counts as a core of its own.
std::vector<HardwareThread> DescribeThreads(std::span<const int> numbers,
                                            const std::string& system = "/sys/devices/system/cpu");

// Whether the environment says where OpenMP's threads run: OMP_PROC_BIND, OMP_PLACES or
// GOMP_CPU_AFFINITY.
bool ThreadsArePlaced();

// OpenMP thread i of this thread's teams runs on hardware thread numbers[i] alone from now on.
// Where it does so already this costs next to nothing: to be called again now and then, since
// OpenMP may end threads and make new ones. False where the system refuses.
bool PinThreads(std::span<const int> numbers);

// The calling thread alone may run on these; as far as the system allows.
void BindThisThread(std::span<const int> numbers);

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_CORES_HPP_
