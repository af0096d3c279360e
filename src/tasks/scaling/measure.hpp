// Measurement of one point in one round: warm-up steps, then steps that count.
#ifndef TRIREME_SRC_TASKS_SCALING_MEASURE_HPP_
#define TRIREME_SRC_TASKS_SCALING_MEASURE_HPP_

#include <optional>
#include <vector>

#include "split.hpp"
#include "trireme/data/corpus.hpp"
#include "trireme/data/pair_file.hpp"
#include "trireme/app/deadline.hpp"
#include "trireme/app/job.hpp"
#include "trireme/tasks/scaling_options.hpp"

namespace trireme::tasks {

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

// Collective over `group`, whose ranks the plan is for. Trains from initial weights. None if a
// signal or the end of the job's time stopped it. PartError if a step cannot be computed.
std::optional<Round> MeasureRound(const app::Job& job, const comm::Communicator& group,
                                  const train::Plan& plan, const Texts& texts,
                                  const ScalingOptions& options, app::Deadline& deadline);

// Mean waiting of ranks for the slowest of their stage, seconds a step. Pure. compute: of each
// rank in each step, [ranks, steps].
double Imbalance(const std::vector<double>& compute, const comm::GridShape& shape);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_MEASURE_HPP_
