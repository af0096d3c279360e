// The one error type of Trireme: what went wrong, where, what to do, and with which exit code to
// end.
#pragma once

#include <stdexcept>
#include <string>

namespace trireme {

// Exit codes of the program; a batch script can decide by them whether to requeue.
enum class ExitCode : int {
  kDone = 0,      // the task is done, or has reached schedule.stop_at
  kFailed = 1,    // the run failed
  kBadInput = 2,  // bad deck, input file or command line; nothing was written
  kStopped = 3,   // stopped early by a signal or the walltime, checkpoint written: run it again
};

// A failure that a user sees. what() is the whole message: one or more lines without a final
// newline, in the form "where: what\n  hint".
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, const std::string& hint = {});
  ExitCode Code() const { return code_; }

 private:
  ExitCode code_;
};

// An error of the user's input: exit code 2.
Error InputError(const std::string& message, const std::string& hint = {});

// A failure after which the run cannot continue: exit code 1.
Error RunError(const std::string& message, const std::string& hint = {});

// Hint for when memory runs out: to raise this process's limit of address space (ulimit -v) if it
// has one, otherwise `advice`.
std::string MemoryAdvice(const std::string& advice);

// An error that every rank of the world throws together, so that all leave through MPI_Finalize.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// An error that all `ranks` ranks of a group smaller than the world throw together. They alone
// cannot leave through MPI_Finalize; the world must first agree on the error (AgreedError).
class PartError : public Error {
 public:
  PartError(ExitCode code, const std::string& message, int ranks)
      : Error(code, message), ranks_(ranks) {}
  int Ranks() const { return ranks_; }

 private:
  int ranks_;
};

}  // namespace trireme
