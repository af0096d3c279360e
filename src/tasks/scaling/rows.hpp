// Rows of a scaling study's table: what follows from the measured rounds. Pure.
#ifndef TRIREME_SRC_TASKS_SCALING_ROWS_HPP_
#define TRIREME_SRC_TASKS_SCALING_ROWS_HPP_

#include <optional>
#include <vector>

#include "points.hpp"
#include "statistics.hpp"

namespace trireme::tasks {

// An estimate and its interval; no interval without two rounds.
struct Estimate {
  double value = 0;
  std::optional<Interval> interval;
};

// Lost efficiency by cause: fractions of the ranks' time, whose sum is 1 - efficiency. Negative
// where more ranks need less.
struct Losses {
  double compute = 0;  // more computation for the same tokens
  double imbalance = 0, communication = 0, bubble = 0, data = 0, other = 0;
  double Total() const { return compute + imbalance + communication + bubble + data + other; }
};

// Gain of several ranks over the baseline, the fewest ranks measured.
struct Gain {
  Estimate speedup;                // of tokens a second
  Estimate efficiency;             // speed-up over the ratio of ranks
  std::optional<Estimate> serial;  // Karp and Flatt's fraction; of strong scaling, above one rank
  Losses lost;
};

struct Row {
  ScalingKind kind = ScalingKind::kStrong;
  const Point* point = nullptr;
  Estimate step;                    // seconds, mean over rounds
  double median = 0;                // seconds, over all steps
  double tokens = 0;                // a step
  double loss = 0;                  // nats per token
  Split split;                      // mean over rounds
  std::optional<double> predicted;  // seconds of a step
  std::optional<Gain> gain;         // none without the baseline's rounds
};

// Rows of all lines that have a round. Refers to the study.
std::vector<Row> RowsOf(const Study& study);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_ROWS_HPP_
