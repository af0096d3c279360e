// Sources of a job: the deck's text and the checkpoint that the job starts from, read by one rank.
#ifndef TRIREME_JOB_SOURCES_HPP_
#define TRIREME_JOB_SOURCES_HPP_

#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/input/deck.hpp"
#include "trireme/job/command_line.hpp"

namespace trireme::job {

struct Sources {
  std::string deck_path;
  std::string deck_text;
  bool own_deck = false;  // the deck of the run that -r names, for want of -i
  // Complete checkpoints that the job may start from, the newest first; empty: it starts afresh.
  std::vector<std::string> candidates;
  // Incomplete ones of the same run, and why: "step_00000020: it lacks run.json".
  std::vector<std::string> passed_over;
  std::string run_text;  // run.json of the first candidate
};

// Serial. Reads the deck behind -i or, without it, of the run that -r names; finds the checkpoints
// that -r or, in the deck, checkpoint.start_from names. A run folder that -r names for training may
// hold none yet: its run ended before the first. Throws InputError.
Sources ReadSources(const input::Schema& schema, const CommandLine& line);

// The same on every rank: world rank 0 reads. AgreedError (exit code 2).
Sources ShareSources(const comm::Communicator& world, const input::Schema& schema,
                     const CommandLine& line);

// Parses the deck and supplies the values that follow from other keys: presets, the checkpoint's
// model, the output folder. Throws InputError.
input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line, const Sources& sources);

// The same for a deck's text alone, which starts from no checkpoint.
input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line,
                      const std::string& text);

}  // namespace trireme::job

#endif  // TRIREME_JOB_SOURCES_HPP_
