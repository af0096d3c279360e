// Single measurements of a rank, each a fraction of a second.
#ifndef TRIREME_SRC_TOOLS_SPEEDS_HPP_
#define TRIREME_SRC_TOOLS_SPEEDS_HPP_

#include "trireme/base/dtype.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::tools {

struct Product {
  double flops = 0;   // FLOP/s, as kernels::MeasureRoof takes it
  bool right = true;  // a product was finite, and the same when it was computed again
};
Product MeasureProduct(const device::Stream& stream, Dtype dtype);

// Bytes per second that a copy reads and writes: of the stream's memory, with the rank's threads.
double MeasureMemory(const device::Stream& stream);

// Bytes per second both ways, with one partner at a time. Collective over `units`.
struct Pairs {
  double median = 0, worst = 0;  // 0: there is no other
  int worst_partner = -1;
};
Pairs MeasurePairs(const comm::Communicator& units);

// The same with the rank half the world away, all ranks at once. Collective.
double MeasureTogether(const comm::Communicator& world);

// Bytes per second of a sum over all ranks: bytes of the operand by the seconds. Collective; the
// same on all ranks.
double MeasureAllReduce(const comm::Communicator& world);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_SPEEDS_HPP_
