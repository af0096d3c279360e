// Rows of a scaling study's table, computed from the measured rounds without communication.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/tasks/scaling.hpp"

namespace trireme::tasks {

// Bounds of a two-sided confidence interval of level kConfidence.
inline constexpr double kConfidence = 0.95;
struct Interval {
  double low = 0, high = 0;
};

double MeanOf(std::span<const double> values);  // of at least one value
double MedianOf(std::vector<double> values);    // of at least one; even n: mean of the middle two
double DeviationOf(std::span<const double> values);  // of a sample of two or more, over n - 1

// Quantile (1 + kConfidence) / 2 of Student's t distribution (Student 1908). degrees: at least 1.
double StudentQuantile(double degrees);

// Confidence interval of a mean of independent values: mean -+ t s / sqrt(n); nullopt for 0 or 1.
std::optional<Interval> IntervalOfMean(std::span<const double> values);

// Confidence interval of a ratio whose numerators and denominators were measured in pairs, one
// after the other, so that what slows both cancels: ratio * exp(-+ t s / sqrt(n)), with s the
// deviation of the pairs' logarithmic ratios. All values are positive; nullopt for fewer than two.
std::optional<Interval> IntervalOfRatio(double ratio, std::span<const double> numerators,
                                        std::span<const double> denominators);

// Experimentally determined serial fraction (Karp and Flatt 1990): (1 / speedup - 1 / processors) /
// (1 - 1 / processors), for processors > 1. Negative if the speed-up is better than ideal.
double KarpFlatt(double speedup, double processors);

// Split of a step's time by what the ranks did in it: seconds per step, means over ranks and steps.
struct Split {
  double compute = 0;
  double data = 0;                             // loading the batch
  double bubble = 0;                           // waiting for another pipeline stage
  std::array<double, comm::kGroups> waited{};  // waiting for each group's transfers, no bubble
  double other = 0;                            // none of these
  // Part of `waited`: waiting for the slowest rank of the own stage to finish computing.
  double imbalance = 0;

  double Waited() const { return std::accumulate(waited.begin(), waited.end(), 0.0); }
  double Total() const { return compute + data + bubble + Waited() + other; }
  // Adds `weight` * more.
  void Add(const Split& more, double weight) {
    compute += weight * more.compute;
    data += weight * more.data;
    bubble += weight * more.bubble;
    for (std::size_t group = 0; group < waited.size(); ++group) {
      waited[group] += weight * more.waited[group];
    }
    other += weight * more.other;
    imbalance += weight * more.imbalance;
  }
};

// Measurement of one point in one round: warm-up steps, then the steps that count.
struct Round {
  std::vector<double> seconds;  // of each measured step, from one agreement of ranks to the next
  Split split;                  // means over these steps
  double tokens = 0;            // per step, over all ranks
  double loss = 0;              // nats per token, mean over the steps
  double Mean() const;          // seconds per step
};

// Pure. Seconds per step that a rank waits, on average, for the slowest rank of its stage.
// compute: [ranks, steps], seconds of computation.
double Imbalance(const std::vector<double>& compute, const comm::GridShape& shape);

// Hosts and cores of a job's first ranks, and whether each of their threads has a core of its own.
struct Room {
  int nodes = 1;
  int threads = 1;  // per rank; the largest number of any rank
  // Cores on all nodes that these ranks may use; on GPUs, the number of cards.
  int cores = 1;
  bool oversubscribed = false;  // a node has more threads than cores, or ranks than cards
};

// Collective over the job's ranks. Room of the first `count` ranks.
Room RoomOf(const app::Ranks& ranks, const app::Device& device, int count);

// Ranks and batch of a point.
struct Size {
  int ranks = 1;
  std::int64_t batch = 1;  // windows per step, over all ranks
  bool operator==(const Size&) const = default;
};

// Default numbers of ranks: `unit` * 1, 2, 4, ... below `world`, and `world` itself. Pure.
std::vector<int> DefaultCounts(int unit, int world);

// Batch of `ranks` ranks in a kind of scaling; 0 if it would not be a whole number. base: the
// number of ranks that train on `batch`. Pure.
std::int64_t BatchOf(ScalingKind kind, std::int64_t batch, int ranks, int base);

// A number of ranks with a batch, and what was measured for it.
struct Point {
  Size size;
  Room room;
  train::Plan plan;
  std::vector<Round> rounds;  // set on the point's ranks only
};

// A line of the study: a point in one kind of scaling. Both kinds may use the same point.
struct Line {
  ScalingKind kind = ScalingKind::kStrong;
  std::size_t point = 0;
};

struct Study {
  ScalingOptions options;
  std::vector<int> counts;          // ascending
  std::vector<Point> points;        // fewest ranks first
  std::vector<Line> lines;          // by kind, then fewest ranks first
  predict::Described machine = {};  // on world rank 0: for predictions
};

// Collective. AgreedError (exit code 2) if a number of ranks cannot be measured, naming it: the job
// has fewer ranks, the layout does not fit, or the steps take more data than there is.
Study PlanStudy(const app::Job& job, const ScalingOptions& options);

// An estimate and its confidence interval, which takes at least two rounds.
struct Estimate {
  double value = 0;
  std::optional<Interval> interval;
};

// Lost efficiency by cause, as fractions of the ranks' time; the sum is 1 - efficiency. A loss is
// negative if more ranks need less time.
inline constexpr std::array kCauses = {"compute", "imbalance", "communication",
                                       "bubble",  "data",      "other"};
using Losses = std::array<double, kCauses.size()>;  // "compute": extra work for as many tokens

// What several ranks gain over the baseline, the fewest ranks measured.
struct Gain {
  Estimate speedup;                // ratio of tokens per second
  Estimate efficiency;             // speed-up divided by the ratio of ranks
  std::optional<Estimate> serial;  // Karp and Flatt's; strong scaling on several ranks only
  Losses lost;
};

struct Row {
  ScalingKind kind = ScalingKind::kStrong;
  const Point* point = nullptr;
  Estimate step;      // seconds, mean over rounds
  double median = 0;  // seconds, over all steps
  double tokens = 0;  // per step
  double loss = 0;    // nats per token
  Split split;        // mean over rounds
  // Seconds per step, by simulating the plan on the described machine; nullopt if there is no
  // description or ranks share cores, which no description covers.
  std::optional<double> predicted;
  std::optional<Gain> gain;  // nullopt without rounds of the baseline
};

// Rows of all lines that have a round. The rows refer to the study.
std::vector<Row> RowsOf(const Study& study);

// Checks that losses do not depend on the number of ranks; else the study is worthless.

// Tolerated relative difference between losses of different layouts (doc/reference/numerics.md,
// rule 4); kSameLossHalf: with products in bf16 or fp8.
inline constexpr double kSameLoss = 1e-5, kSameLossHalf = 1e-3;

// Sentences about strong-scaling rows whose losses differ by more than `tolerance` from the
// baseline's, and about points whose rounds differ in any bit. Empty: none.
std::vector<std::string> CompareLosses(const std::vector<Row>& rows, double tolerance);

// Text before the first step, without a newline at its end.
std::string Head(const app::Request& request, const app::Device& device, const Study& study);
// The tables of what was measured: speeds, and where the ranks' time went.
std::string Tables(const std::vector<Row>& rows);

// Table of a scaling study: scaling.csv; doc/scaling.md explains its columns.
// A line of column names, then a line per row. Unknown values are empty.
std::string Csv(const std::vector<Row>& rows, const Study& study);

}  // namespace trireme::tasks
