// The one error type of Trireme: what went wrong, where, what to do, and the exit code it leads to.
#ifndef TRIREME_BASE_ERROR_HPP_
#define TRIREME_BASE_ERROR_HPP_

#include <stdexcept>
#include <string>

namespace trireme {

// Exit codes of the program; a batch script's requeue decision needs nothing else.
enum class ExitCode : int {
  kDone = 0,      // the task ended, also at schedule.stop_at
  kFailed = 1,    // the run failed
  kBadInput = 2,  // bad deck, input file or command line; nothing was written
  kStopped = 3,   // stopped early by a signal or the walltime, checkpoint written: run it again
};

// Any failure that a user sees. `what()` is the whole message: one or more lines without a trailing
// newline, in the form "where: what\n  hint".
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, const std::string& hint = {})
      : std::runtime_error(hint.empty() ? message : message + "\n  " + hint), code_(code) {}
  ExitCode Code() const { return code_; }

 private:
  ExitCode code_;
};

// The user's input is wrong: exit code 2.
inline Error InputError(const std::string& message, const std::string& hint = {}) {
  return Error(ExitCode::kBadInput, message, hint);
}

// The run cannot go on: exit code 1.
inline Error RunError(const std::string& message, const std::string& hint = {}) {
  return Error(ExitCode::kFailed, message, hint);
}

// An error that every rank of the world throws together, so that all leave through MPI_Finalize.
class AgreedError : public Error {
 public:
  using Error::Error;
};

}  // namespace trireme

#endif  // TRIREME_BASE_ERROR_HPP_
