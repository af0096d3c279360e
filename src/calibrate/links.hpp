// Speeds of transfers between the ranks at hand.
#ifndef TRIREME_SRC_CALIBRATE_LINKS_HPP_
#define TRIREME_SRC_CALIBRATE_LINKS_HPP_

#include "trireme/calibrate/calibrate.hpp"

namespace trireme::calibrate {

// Collective. Sets machine.node and machine.network, and says in machine.assumptions what could not
// be measured. Sums and gathers run over the ranks of each node, then over the world, as training
// starts them; their formulas are those of a simulation, solved for the link.
void MeasureLinks(const Subject& subject, simulate::Machine& machine);

}  // namespace trireme::calibrate

#endif  // TRIREME_SRC_CALIBRATE_LINKS_HPP_
