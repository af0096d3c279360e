// ProcessState: what the system says about a process of this machine.
#ifndef TRIREME_SRC_COMM_PROCESS_STATE_HPP_
#define TRIREME_SRC_COMM_PROCESS_STATE_HPP_

#include <cstdint>
#include <string>

namespace trireme::comm {

struct ProcessState {
  char letter = '-';         // as /proc/PID/stat has it; '-': there is no such process; '?': it
                             // cannot be looked at, for want of descriptors or of /proc
  std::int64_t started = 0;  // clock ticks after the machine's start; 0: not known
};

ProcessState LookAt(int pid);

// Whether it can do nothing any more, and whether someone has stopped it.
bool IsGone(char letter);
bool IsStopped(char letter);
// "is stopped (SIGSTOP, a debugger)", "is gone".
std::string DescribeProcess(char letter);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_PROCESS_STATE_HPP_
