// Speeds of transfers between the ranks at hand.
#ifndef TRIREME_SRC_PREDICT_LINKS_HPP_
#define TRIREME_SRC_PREDICT_LINKS_HPP_

#include "trireme/predict/calibrate.hpp"

namespace trireme::predict {

// Collective. Sets machine.node and machine.network, and says in machine.assumptions what could not
// be measured. Sums and gathers run over the ranks of each node, then over the world, as training
// starts them; their formulas are those of a simulation, solved for the link.
void MeasureLinks(const Subject& subject, Machine& machine);

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_LINKS_HPP_
