// The [checkpoint] section.
#ifndef TRIREME_CHECKPOINT_OPTIONS_HPP_
#define TRIREME_CHECKPOINT_OPTIONS_HPP_

#include <cstdint>
#include <string>

#include "trireme/input/deck.hpp"

namespace trireme::checkpoint {

struct Options {
  std::int64_t every_steps = 500;  // steps between checkpoints; 0: after the last step only
  double every_minutes = 0;        // minutes of wall time between checkpoints; 0: never
  std::int64_t keep = 2;           // checkpoints that stay, the newest; 0: all
  bool best = true;                // the link `best` follows the lowest validation loss
  std::string start_from;  // checkpoint or run folder with the initial weights of a new run;
                           // empty: random weights
};

void Declare(input::Schema& schema);  // [checkpoint]

Options Read(const input::Deck& deck);

}  // namespace trireme::checkpoint

#endif  // TRIREME_CHECKPOINT_OPTIONS_HPP_
