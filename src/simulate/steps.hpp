// A step of a plan, recorded and played.
#ifndef TRIREME_SRC_SIMULATE_STEPS_HPP_
#define TRIREME_SRC_SIMULATE_STEPS_HPP_

#include <vector>

#include "engine.hpp"
#include "tape.hpp"
#include "trireme/plan/plan.hpp"

namespace trireme::simulate {

struct PlayedStep {
  std::vector<Tape> tapes;            // [stages]
  std::vector<plan::RankPlan> ranks;  // [stages]: the ranks that were recorded
  Simulated simulated;
};

// shape: of the step, at most a batch. slices: wanted of the simulation.
PlayedStep PlayStep(const plan::Plan& plan, const Machine& machine,
                    const training::StepShape& shape, bool slices);

}  // namespace trireme::simulate

#endif  // TRIREME_SRC_SIMULATE_STEPS_HPP_
