// Softmax and cross-entropy on a tile of logits.
#ifndef TRIREME_KERNELS_CROSS_ENTROPY_HPP_
#define TRIREME_KERNELS_CROSS_ENTROPY_HPP_

#include <cstdint>

#include "trireme/device/stream.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// losses[r] = -(1 - e) ln p[target] - e / V sum_v ln p[v], p = softmax(logits[r]), e = smoothing; 0
// for masked rows (targets[r] < 0).
//   logits   [rows, vocabulary]; with `gradient` they become d losses[r] / d logits (0 if masked),
//            without they are used as scratch: their values are lost either way
//   targets  [rows]
//   losses   [rows], nats, overwritten
void CrossEntropy(const device::Stream& stream, const Matrix& logits,
                  const std::int32_t* targets, double smoothing, bool gradient, double* losses);

// The same with a slice of the vocabulary per rank, in two passes with an exchange of statistics
// between them.
inline constexpr std::int64_t kSoftmaxStatistics = 4;  // numbers per row

// Statistics of a slice, which is not empty. Masked rows are left as they are, their statistics 0.
//   logits      [rows, slice], of tokens [first, first + slice); become exp(logit - largest)
//   statistics  [rows, 4] fp64, dense, overwritten: largest logit, sum of exp(logit - largest), the
//               target's logit (0 if another slice has it), sum of logits
//   targets     [rows], global ids; < 0: masked
void SoftmaxStatistics(const device::Stream& stream, const Matrix& logits,
                       const std::int32_t* targets, std::int32_t first, double* statistics);

// losses[r] of the whole vocabulary, the same bits on every rank; not finite if a logit is not.
//   statistics  [parts, rows, 4], of all slices; `part` is the slice of these logits
//   logits      as SoftmaxStatistics left them; with `gradient` they become this slice of the
//               gradient
//   targets     [rows], global ids; < 0: masked
//   losses      [rows], nats, overwritten
void CrossEntropySlice(const device::Stream& stream, const Matrix& logits,
                       const std::int32_t* targets, std::int32_t first, std::int64_t vocabulary,
                       double smoothing, bool gradient, const double* statistics, int parts,
                       int part, double* losses);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CROSS_ENTROPY_HPP_
