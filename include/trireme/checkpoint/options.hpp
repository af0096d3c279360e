// The [checkpoint] section.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/deck/deck.hpp"

namespace trireme::checkpoint {

enum class OnCorruption { kStop, kRestore };

struct Options {
  std::int64_t every_steps = 500;  // steps between checkpoints; 0: only after the last step
  double every_minutes = 0;        // minutes of wall time between checkpoints; 0: never
  bool automatic = false;          // checkpoint.auto: the interval is computed from mtbf_hours
  double mtbf_hours = 0;           // run.mtbf_hours: mean time between failures of the job
  std::int64_t check_replicas_every = 100;           // run.check_replicas_every: steps; 0: never
  OnCorruption on_corruption = OnCorruption::kStop;  // run.on_corruption
  std::int64_t max_failures = 3;                     // failed writes in a row that end the run
  std::int64_t max_restarts = 10;     // most starts in a row at one step; 0: no limit
  std::int64_t keep = 2;              // newest checkpoints that are kept; 0: all
  std::int64_t keep_every_steps = 0;  // steps that are multiples of this are kept too; 0: none
  bool best = true;                   // let the link `best` follow the lowest validation loss
  bool async = false;                 // write while training continues
  std::int64_t writers = 1;           // processes per node that write; 0: every rank
  std::string io_hints;               // for MPI-IO: "striping_factor=8,striping_unit=4194304"
  std::string local;                  // folder of local checkpoints on each node; empty: none
  std::int64_t drain_every = 10;  // one local one in so many also goes to the run folder; 0: none
  double local_survival = 0.9;    // for checkpoint.auto: share of failures that local ones survive
  std::string start_from;         // checkpoint or run folder with the initial weights of a new run;
                                  // empty: random weights

  // Regular checkpoints per one that goes to the run folder.
  std::int64_t Drains() const { return local.empty() ? 1 : drain_every; }
};

void Declare(deck::Schema& schema);  // [checkpoint]

// Makes 0 the default of every_steps and drain_every if checkpoint.auto chooses the interval.
void Resolve(deck::Deck& deck);

// Throws InputError with the deck's line if values contradict each other.
Options Read(const deck::Deck& deck);

}  // namespace trireme::checkpoint
