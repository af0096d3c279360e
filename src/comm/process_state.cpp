// ProcessState: reads /proc.
#include "process_state.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace trireme::comm {

ProcessState LookAt(int pid) {
  const int file = ::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {.letter = errno == ENOENT || errno == ESRCH ? '-' : '?'};
  std::array<char, 1024> text{};
  const auto length = ::read(file, text.data(), text.size() - 1);
  const bool ended = length < 0 && errno == ESRCH;
  ::close(file);
  if (ended) return {};
  // The name in parentheses may hold anything; fields 3 and 22 follow the last parenthesis.
  const char* const end = length > 0 ? std::strrchr(text.data(), ')') : nullptr;
  if (end == nullptr) return {.letter = '?'};
  ProcessState state;
  long long started = 0;
  const int found = std::sscanf(end + 1,
                                " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                "%*s %*s %*s %lld",
                                &state.letter, &started);
  if (found != 2) return {.letter = '?'};
  state.started = started;
  return state;
}

bool IsGone(char letter) { return letter == '-' || letter == 'Z' || letter == 'X'; }
bool IsStopped(char letter) { return letter == 'T' || letter == 't'; }

std::string DescribeProcess(char letter) {
  switch (letter) {
    case '-':
    case 'Z':
    case 'X':
      return "is gone: it was killed or has crashed";
    case 'T':
      return "is stopped (SIGSTOP, or suspended with its job)";
    case 't':
      return "is stopped by a debugger";
    case 'D':
      return "waits for a disk or a file system (state D)";
    case 'R':
      return "is running";
    case '?':
      return "cannot be looked at";
    case 'S':
    case 'I':
      return "sleeps";
    default:
      return fmt::format("is in state {}", letter);
  }
}

}  // namespace trireme::comm
