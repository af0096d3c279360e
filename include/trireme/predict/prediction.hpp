// Prediction: the time of a training step before it runs.
#ifndef TRIREME_PREDICT_PREDICTION_HPP_
#define TRIREME_PREDICT_PREDICTION_HPP_

#include <array>
#include <cstdint>
#include <string>

#include "trireme/comm/ledger.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/predict/machine.hpp"

namespace trireme::predict {

// Times are those of a step, s, as metrics.jsonl has them: means over the pipeline's stages.
struct Prediction {
  double step = 0;
  double compute = 0;
  std::array<double, comm::kGroups> exposed{};  // waits for transfers, by group
  double bubble = 0;                            // waits for other stages' results
  double other = 0;                             // the rest of the step
  double Exposed() const;                       // over all groups
  // Parts of `compute` on the stage that computes longest.
  double products = 0, attention = 0, passes = 0;
  double tokens_per_second = 0;    // of all ranks
  double utilisation = 0;          // model's operations over the peak of the precision's products
  std::int64_t micro_batches = 0;  // of a data rank
  std::int64_t tasks = 0;          // of the pipeline's schedule, over all stages
  std::int64_t transfers = 0;      // that the stages' ranks start
};

// Plays a step of the plan on the machine. With many micro-batches two shorter steps are played,
// and the rest goes on at the rate of their difference. The plan's device must be the machine's.
Prediction Predict(const train::Plan& plan, const Machine& machine);

// Plays the whole step, and writes its timeline to `path` (trace/trace_file.hpp), one process for
// each stage. RunError if it cannot be written.
void WriteTimeline(const train::Plan& plan, const Machine& machine, const std::string& path);

}  // namespace trireme::predict

#endif  // TRIREME_PREDICT_PREDICTION_HPP_
