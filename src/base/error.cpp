// Error, and the functions that make errors.
#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

namespace trireme {

Error::Error(ExitCode code, const std::string& message, const std::string& hint)
    : std::runtime_error(hint.empty() ? message : message + "\n  " + hint), code_(code) {}

Error InputError(const std::string& message, const std::string& hint) {
  return Error(ExitCode::kBadInput, message, hint);
}

Error RunError(const std::string& message, const std::string& hint) {
  return Error(ExitCode::kFailed, message, hint);
}

std::string MemoryAdvice(const std::string& advice) {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return advice;
  return fmt::format(
      "The address space of this process is limited to {} MiB: raise it (ulimit -v unlimited).",
      limit.rlim_cur >> 20);
}

}  // namespace trireme
