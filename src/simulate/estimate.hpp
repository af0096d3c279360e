// Estimate: a layout's step time and least memory by formulas, to choose those that are simulated.
#ifndef TRIREME_SRC_SIMULATE_ESTIMATE_HPP_
#define TRIREME_SRC_SIMULATE_ESTIMATE_HPP_

#include "trireme/plan/plan.hpp"
#include "trireme/simulate/machine.hpp"
#include "trireme/simulate/search.hpp"

namespace trireme::simulate {

struct Estimate {
  double seconds = 0;
  double least_bytes = 0;  // of a rank: state, and what a block needs
};
Estimate EstimateOf(const plan::Request& request, const Machine& machine, const Layout& layout);

}  // namespace trireme::simulate

#endif  // TRIREME_SRC_SIMULATE_ESTIMATE_HPP_
