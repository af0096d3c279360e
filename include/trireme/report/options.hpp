// The [monitor] section.
#ifndef TRIREME_REPORT_OPTIONS_HPP_
#define TRIREME_REPORT_OPTIONS_HPP_

#include <cstdint>

#include "trireme/deck/deck.hpp"

namespace trireme::report {

// Steps from first to last, counted from 1, both included.
struct StepWindow {
  std::int64_t first = 0, last = 0;
  bool None() const { return last == 0; }
};

struct Options {
  std::int64_t every_steps = 50;            // steps between lines on the screen
  std::int64_t validate_every_steps = 500;  // steps between validations; 0: never
  std::int64_t validate_windows = 0;        // of each set, a sample; 0: all
  std::int64_t sample_tokens = 40;          // tokens of the text at the end; 0: none
  bool tensorboard = true;                  // write event files
  std::int64_t histogram_every_steps = 0;   // steps between histograms; 0: never
  StepWindow trace_steps;                   // of the timeline
  bool trace_kernels = true;                // kernels of GPUs in it
  bool report = true;                       // report.html is made at the end
};

void Declare(deck::Schema& schema);  // [monitor]

Options Read(const deck::Deck& deck);

}  // namespace trireme::report

#endif  // TRIREME_REPORT_OPTIONS_HPP_
