// Sources of a job: the command line, the deck's text, and the checkpoints that it may start from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/app/run_record.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/schema.hpp"

namespace trireme::app {

// The command line, and the options that are answered without MPI.

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
  std::string calibrate = {};            // --calibrate FILE: where to write a machine's description
  std::vector<std::string> overrides;    // section.key=value
};

std::string HelpText();  // the text of --help

// Throws InputError for an unknown option (naming the known ones) or one without its value.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

// Returns `code` after an answer was printed; kFailed, with a message, if standard output failed.
ExitCode Answered(ExitCode code);

// Answers --help, --help-deck, --version, --watch, --support and -n without MPI, and returns the
// exit code; nullopt if the command line asks for something else. Errors go to standard error.
std::optional<ExitCode> AnswerWithoutMpi(const CommandLine& line, const deck::Schema& schema);

}  // namespace trireme::app

namespace trireme::checkpoint {
class LocalCheckpoint;
}

namespace trireme::app {

// The checkpoints that a job may start from.
struct Start {
  std::vector<std::string> candidates;  // complete ones, newest first; empty: a fresh start
  // True: a new run begins at step 0 with a candidate's weights (checkpoint.start_from). False: the
  // run of the candidates is continued.
  bool weights_alone = false;
  // Newer checkpoints that were not taken, with reasons: "step_00000020: it lacks run.json".
  std::vector<std::string> passed_over;
  std::vector<std::string> damaged;   // folders of damaged checkpoints
  std::vector<std::string> warnings;  // about the deck, for PrintWarnings
  std::optional<RunRecord> record;    // run.json of `local`, else of the first candidate
  // A newer local checkpoint, which is loaded instead of the first candidate; null: none.
  std::shared_ptr<const checkpoint::LocalCheckpoint> local = {};
};

struct Sources {
  std::string deck_path;
  std::string deck_text;
  std::string site_path = {};  // of the site's deck (TRIREME_SITE_DECK); empty: no such deck
  std::string site_text = {};
  std::string config_path = {};  // config.json of hf.path, for job.task = import; else empty
  std::string config_text = {};
  std::vector<std::string> forgotten = {};  // keys to treat as if the deck left them out
  Start start;
};

// Reads the deck of -i and the site's deck (TRIREME_SITE_DECK) or, without -i, the own deck of the
// run that -r names. Finds the checkpoints that -r or checkpoint.start_from names. Not collective.
// A run folder may hold no checkpoint because its run ended before the first: training with -r then
// begins as the run's deck says. If deck.in was cut off, a checkpoint's deck is taken, with a
// warning. Throws InputError, also if the run's records mention a checkpoint but none is there: it
// is lost.
Sources ReadSources(const deck::Schema& schema, const CommandLine& line);

// World rank 0 reads the sources; all ranks return them. Collective. Throws AgreedError.
Sources ShareSources(const comm::Communicator& world, const deck::Schema& schema,
                     const CommandLine& line);

// Finds the checkpoints again after the run that still writes them has removed the first candidate.
// Collective. deck: the job's. Throws AgreedError (exit code 2) if there are none.
void FindAgain(const comm::Communicator& world, const CommandLine& line, const deck::Deck& deck,
               Start& start);

// Prints start.warnings to standard error.
void PrintWarnings(const Start& start);

// Parses the deck, and supplies the site's values and those that follow from others: presets, the
// checkpoint's model, the output folder. Throws InputError.
deck::Deck ParseDeck(const deck::Schema& schema, const CommandLine& line, const Sources& sources);

// Parses the text of a deck that starts from no checkpoint, likewise.
deck::Deck ParseDeck(const deck::Schema& schema, const CommandLine& line, const std::string& text);

}  // namespace trireme::app
