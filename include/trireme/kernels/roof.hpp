// Roof: the speed at which this machine multiplies matrices right now.
#ifndef TRIREME_KERNELS_ROOF_HPP_
#define TRIREME_KERNELS_ROOF_HPP_

#include "trireme/base/dtype.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

// FLOP/s of the best of several products of 1024 x 1024 matrices in about a tenth of a second, of
// two if ranks share cores and one takes longer, through the same seam as the model's. All ranks
// measure at the same time, as they will train.
double MeasureRoof(const device::Stream& stream, Dtype dtype);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_ROOF_HPP_
