// The command line of the program, and the questions that it answers without MPI.
#ifndef TRIREME_APP_COMMAND_LINE_HPP_
#define TRIREME_APP_COMMAND_LINE_HPP_

#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/deck/schema.hpp"

namespace trireme::app {

struct CommandLine {
  std::string deck;                      // -i
  std::string resume;                    // -r: a run folder or a checkpoint
  bool resolve_only = false;             // -n
  bool validate_only = false;            // -v
  bool help = false;                     // --help
  bool version = false;                  // --version
  std::optional<std::string> help_deck;  // --help-deck [section or key]
  std::vector<std::string> watch;        // --watch RUN...: run folders
  std::string support = {};              // --support RUN: a run folder
  bool self_test = false;                // --self-test [FOLDER]
  std::string self_test_folder = {};     // empty: $TMPDIR, else /tmp
  std::string calibrate = {};            // --calibrate FILE: a machine's description
  std::vector<std::string> overrides;    // section.key=value
};

std::string HelpText();  // of --help

// Throws InputError for an option that does not exist or lacks its value, naming those that do.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

// The exit code of an answer that was printed: kFailed, with a message, if standard output did not
// take all of it.
ExitCode Answered(ExitCode code);

// --help, --help-deck, --version, --watch, --support and -n: prints the answer and returns its exit
// code; nothing if the command line asks for a task. Starts no MPI. A bad deck under -n goes to
// standard error.
std::optional<ExitCode> AnswerWithoutMpi(const CommandLine& line, const deck::Schema& schema);

}  // namespace trireme::app

#endif  // TRIREME_APP_COMMAND_LINE_HPP_
