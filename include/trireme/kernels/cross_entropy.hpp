// Softmax and cross-entropy on a tile of logits.
#ifndef TRIREME_KERNELS_CROSS_ENTROPY_HPP_
#define TRIREME_KERNELS_CROSS_ENTROPY_HPP_

#include <cstdint>

#include "trireme/device/stream.hpp"
#include "trireme/tensor/matrix.hpp"

namespace trireme::kernels {

// losses[r] = -(1 - e) ln p[target] - e / V sum_v ln p[v], p = softmax(logits[r]), e = smoothing; 0
// where targets[r] < 0. With `gradient`, logits become d losses[r] / d logits (0 where masked);
// without, they are used as scratch: their values are lost either way. logits: [rows, vocabulary];
// targets: [rows]; losses: [rows], nats.
void CrossEntropy(const device::Stream& stream, const tensor::Matrix& logits,
                  const std::int32_t* targets, double smoothing, bool gradient, double* losses);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CROSS_ENTROPY_HPP_
