// The one error type.
#include "trireme/base/error.hpp"

namespace trireme {

Error::Error(ExitCode code, const std::string& message, const std::string& hint)
    : std::runtime_error(hint.empty() ? message : message + "\n  " + hint), code_(code) {}

Error InputError(const std::string& message, const std::string& hint) {
  return Error(ExitCode::kBadInput, message, hint);
}

Error RunError(const std::string& message, const std::string& hint) {
  return Error(ExitCode::kFailed, message, hint);
}

}  // namespace trireme
