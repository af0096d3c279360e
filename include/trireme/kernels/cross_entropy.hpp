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

// The same where each rank has a slice of the vocabulary, in two passes with an exchange of
// statistics between them.
//
inline constexpr std::int64_t kSoftmaxStatistics = 4;  // numbers a row

// logits: [rows, slice], logits of [first, first + slice); logits become exp(logit - largest).
// statistics: [rows, 4] fp64, dense: largest logit, sum of exp(logit - largest), the target's logit
// (0 where another slice has it), sum of logits. A slice is not empty. Rows with targets[r] < 0 are
// left as they are, their statistics 0.
void SoftmaxStatistics(const device::Stream& stream, const tensor::Matrix& logits,
                       const std::int32_t* targets, std::int32_t first, double* statistics);

// statistics: [parts, rows, 4], of all slices; `part` is the one of these logits. losses[r] of the
// whole vocabulary (the same bits on every rank; not finite where a logit is not); with `gradient`,
// logits (as SoftmaxStatistics left them) become this slice of the gradient.
void CrossEntropySlice(const device::Stream& stream, const tensor::Matrix& logits,
                       const std::int32_t* targets, std::int32_t first, std::int64_t vocabulary,
                       double smoothing, bool gradient, const double* statistics, int parts,
                       int part, double* losses);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CROSS_ENTROPY_HPP_
