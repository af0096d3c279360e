// Sources of a job: the deck's text and the checkpoint that the job starts from, read by one rank.
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

// The command line of the program, and the questions that it answers without MPI.

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

namespace trireme::checkpoint {
class LocalCheckpoint;
}

namespace trireme::app {

// Checkpoints that a job may start from.
struct Start {
  std::vector<std::string> candidates;  // complete ones, the newest first; empty: it starts afresh
  // The run begins at step 0 with their weights (checkpoint.start_from); false: it goes on.
  bool weights_alone = false;
  // Newer ones and the reason for each: "step_00000020: it lacks run.json".
  std::vector<std::string> passed_over;
  std::vector<std::string> damaged;   // folders among these whose bytes are wrong
  std::vector<std::string> warnings;  // about the deck
  std::optional<RunRecord> record;    // run.json of the first candidate, or of `local`
  // The state comes from there: it is newer than the first candidate. Null: from the candidate.
  std::shared_ptr<const checkpoint::LocalCheckpoint> local = {};
};

struct Sources {
  std::string deck_path;
  std::string deck_text;
  std::string site_path = {};  // of the site's deck (TRIREME_SITE_DECK); empty: none
  std::string site_text = {};
  std::string config_path = {};  // config.json of hf.path, for job.task = import; else empty
  std::string config_text = {};
  std::vector<std::string> forgotten = {};  // keys that are taken as if the deck left them out
  Start start;
};

// Serial. Reads the deck after -i, and for it the site's deck (TRIREME_SITE_DECK), or, without -i,
// the deck of the run that -r names; finds the checkpoints
// that -r or, in the deck, checkpoint.start_from names. A run folder that -r names for training may
// hold none yet: its run ended before the first, and begins as its deck says. Refused if its
// records tell of one: what they tell of is gone. A deck.in that was cut off gives way to the deck
// in the newest checkpoint, with a warning, or is refused. Throws InputError.
Sources ReadSources(const deck::Schema& schema, const CommandLine& line);

// The same on every rank: world rank 0 reads. AgreedError (exit code 2).
Sources ShareSources(const comm::Communicator& world, const deck::Schema& schema,
                     const CommandLine& line);

// Collective. Finds the checkpoints anew after the first candidate has vanished: pruned by the run
// that goes on writing them. `deck` is the job's. AgreedError (exit code 2) if there are none.
void FindAgain(const comm::Communicator& world, const CommandLine& line, const deck::Deck& deck,
               Start& start);

// Serial. Prints the warnings to standard error.
void PrintWarnings(const Start& start);

// Parses the deck and supplies the site's values and those that follow from other keys: presets,
// the checkpoint's model, the output folder. Throws InputError.
deck::Deck ParseDeck(const deck::Schema& schema, const CommandLine& line, const Sources& sources);

// The same for a deck's text alone, which starts from no checkpoint.
deck::Deck ParseDeck(const deck::Schema& schema, const CommandLine& line, const std::string& text);

}  // namespace trireme::app
