// Rows of a scaling study's table: what follows from the measured rounds. Pure.
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

#include "trireme/app/batch_job.hpp"
#include "trireme/app/job.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/tasks/scaling.hpp"

namespace trireme::tasks {

// Statistics of a scaling study: intervals of confidence and the serial fraction. Pure.

// Bounds of a two-sided interval of kConfidence.
inline constexpr double kConfidence = 0.95;
struct Interval {
  double low = 0, high = 0;
};

double MeanOf(std::span<const double> values);       // of at least one
double MedianOf(std::vector<double> values);         // likewise; of an even number, between the two
double DeviationOf(std::span<const double> values);  // of a sample, over n - 1; of at least two

// Quantile (1 + kConfidence) / 2 of Student's t distribution (Student 1908); degrees >= 1.
double StudentQuantile(double degrees);

// The interval of the mean of independent values: mean -+ t s / sqrt(n). None for fewer than two.
std::optional<Interval> IntervalOfMean(std::span<const double> values);

// The interval of a ratio whose numerator and denominator were measured in pairs, one after the
// other, so that what slows a whole pair cancels: `ratio` times exp(-+ t s / sqrt(n)), s the
// deviation of the pairs' logarithmic ratios. Values are positive. None for fewer than two pairs.
std::optional<Interval> IntervalOfRatio(double ratio, std::span<const double> numerators,
                                        std::span<const double> denominators);

// Experimentally determined serial fraction (Karp and Flatt 1990):
// (1 / speed-up - 1 / processors) / (1 - 1 / processors); processors > 1. Negative beyond the ideal
// speed-up.
double KarpFlatt(double speedup, double processors);

// Split of a step's time: what a mean rank did in it.

// Seconds a step, means over ranks and measured steps.
struct Split {
  double compute = 0;
  double data = 0;                             // loading the batch
  double bubble = 0;                           // waiting for another pipeline stage
  std::array<double, comm::kGroups> waited{};  // for transfers of each group, without the bubble
  double other = 0;                            // in none of these
  // Part of the waiting: for the slowest rank of the own stage to finish computing.
  double imbalance = 0;

  double Waited() const { return std::accumulate(waited.begin(), waited.end(), 0.0); }
  double Total() const { return compute + data + bubble + Waited() + other; }
  // Adds `weight` times another.
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

// Measurement of one point in one round: warm-up steps, then steps that count.

// Texts of a study: windows, or the pairs of a model that translates; the other is null.
struct Texts {
  const data::Corpus* corpus = nullptr;
  const data::PairFile* pairs = nullptr;
};

struct Round {
  std::vector<double> seconds;  // of each measured step: from agreement to agreement of the ranks
  Split split;                  // means of these steps
  double tokens = 0;            // a step, of all ranks
  double loss = 0;              // nats per token, mean of the steps
  double Mean() const;          // seconds a step
};

// Mean waiting of ranks for the slowest of their stage, seconds a step. Pure. compute: of each
// rank in each step, [ranks, steps].
double Imbalance(const std::vector<double>& compute, const comm::GridShape& shape);

// Hosts and cores of the first ranks of a job: whether a count of ranks has a core per thread.

struct Room {
  int nodes = 1;
  int threads = 1;  // of a rank; the most of any
  // Cores that these ranks may use, of all nodes; on GPUs, cards.
  int cores = 1;
  bool oversubscribed = false;  // on any node: more threads than cores, more ranks than cards
};

class Rooms {
 public:
  explicit Rooms(const app::Ranks& ranks, const app::Device& device);  // collective
  Room Of(int ranks) const;  // collective over the job's ranks; of the first `ranks`

 private:
  struct Neighbour {
    int rank = 0;     // of the world
    int threads = 1;  // that need a core, or a card, of their own
    std::vector<std::string> places;
  };
  const comm::Communicator& world_;
  const bool first_;  // of its node
  const int threads_;
  std::vector<Neighbour> node_;  // ranks of this node, this one included
};

// Points of a scaling study: numbers of ranks with their batches and plans.

// Ranks and batch of a point, before there is a plan.
struct Size {
  int ranks = 1;
  std::int64_t batch = 1;  // windows a step, over all ranks
  bool operator==(const Size&) const = default;
};

// Numbers of ranks to compare if the deck names none: `unit` times 1, 2, 4 ... up to `world`, and
// `world` itself. Pure.
std::vector<int> DefaultCounts(int unit, int world);

// Batch of `ranks` ranks in a kind of scaling. Pure. base: ranks for which `batch` stands. 0 if it
// is no whole number of windows.
std::int64_t BatchOf(ScalingKind kind, std::int64_t batch, int ranks, int base);

// One number of ranks with one batch, and what was measured there.
struct Point {
  Size size;
  Room room;
  train::Plan plan;
  std::vector<Round> rounds;  // on the point's ranks
};

// One line of the study: a point, in one kind of scaling. A point may serve both kinds.
struct Line {
  ScalingKind kind = ScalingKind::kStrong;
  std::size_t point = 0;
};

struct Study {
  ScalingOptions options;
  std::vector<int> counts;          // rising
  std::vector<Point> points;        // fewest ranks first
  std::vector<Line> lines;          // by kind, then fewest ranks first
  predict::Described machine = {};  // on world rank 0: for predictions
};

// Collective. AgreedError (exit code 2) that names the number of ranks which cannot be measured:
// more than the job has, a layout that does not fit, less data than the steps take.
Study PlanStudy(const app::Request& request, const app::Ranks& ranks, const app::Device& device,
                const app::Files& files, const ScalingOptions& options);

// Step time that a plan's model of the machine predicts.

// Seconds of a step; none without a description, and of ranks that share cores, which no
// description knows.
std::optional<double> PredictedStepSeconds(const Point& point,
                                           const std::optional<predict::Machine>& machine);

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
inline constexpr std::array<std::pair<const char*, double Losses::*>, 6> kCauses = {
    {{"compute", &Losses::compute},
     {"imbalance", &Losses::imbalance},
     {"communication", &Losses::communication},
     {"bubble", &Losses::bubble},
     {"data", &Losses::data},
     {"other", &Losses::other}}};

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

// Check that all numbers of ranks computed the same: a study that does not is worthless.

// Largest relative difference between losses of layouts (doc/reference/numerics.md, rule 4), and
// with products in bf16 or fp8.
inline constexpr double kSameLoss = 1e-5, kSameLossHalf = 1e-3;

// Sentences about strong scaling whose losses differ by more than `tolerance` from the baseline's;
// and about a point whose rounds differ in a single bit. Empty: none.
std::vector<std::string> CompareLosses(const std::vector<Row>& rows, double tolerance);

// Screen of a scaling study: what is measured, and what came of it.

// Lines before the first step, without the last newline.
std::string Head(const app::Request& request, const app::Device& device, const Study& study);
// The tables of what was measured: speeds, and where the ranks' time went.
std::string Tables(const std::vector<Row>& rows);

// Table of a scaling study: scaling.csv, whose columns doc/scaling.md explains.

// A line of names, then one for each row. What is not known is left empty.
std::string Csv(const std::vector<Row>& rows, const Study& study);

}  // namespace trireme::tasks
