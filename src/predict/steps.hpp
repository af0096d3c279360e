// A step of a plan, recorded and played.
#ifndef TRIREME_SRC_PREDICT_STEPS_HPP_
#define TRIREME_SRC_PREDICT_STEPS_HPP_

#include <vector>

#include "engine.hpp"
#include "tape.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::predict {

struct PlayedStep {
  std::vector<Tape> tapes;            // [stages]
  std::vector<train::RankPlan> ranks;  // [stages]: the ranks that were recorded
  Simulated simulated;
};

// shape: of the step, at most a batch. slices: wanted of the simulation.
PlayedStep PlayStep(const train::Plan& plan, const Machine& machine,
                    const train::StepShape& shape, bool slices);

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_STEPS_HPP_
