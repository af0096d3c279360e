// Estimate: a layout's step time and least memory by formulas, to choose those that are simulated.
#ifndef TRIREME_SRC_PREDICT_ESTIMATE_HPP_
#define TRIREME_SRC_PREDICT_ESTIMATE_HPP_

#include "trireme/train/plan.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/predict/search.hpp"

namespace trireme::predict {

struct Estimate {
  double seconds = 0;
  double least_bytes = 0;  // of a rank: state, and what a block needs
};
Estimate EstimateOf(const train::Request& request, const Machine& machine, const Layout& layout);

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_ESTIMATE_HPP_
