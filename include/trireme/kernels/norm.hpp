// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), and sums over rows.
#ifndef TRIREME_KERNELS_NORM_HPP_
#define TRIREME_KERNELS_NORM_HPP_

#include "trireme/kernels/dropout.hpp"

namespace trireme::kernels {

enum class NormKind { kLayerNorm, kRmsNorm };

// y = (x - mean) * rstd * weight + bias over the columns (RMSNorm: mean = 0).
//   x, y          [rows, dim]; y overwritten
//   weight, bias  [1, dim]; bias may be Empty()
//   statistics    [rows, 2], overwritten: mean, rstd; dense (as all scratch: strides are not read)
void NormForward(const device::Stream& stream, NormKind kind, const Matrix& x,
                 const Matrix& weight, const Matrix& bias, double epsilon,
                 const Matrix& y, const Matrix& statistics);

// dx = gradient through the norm, or dx += with `accumulate` (without it dx may be dy). CPU only.
//   dy, x, dx   [rows, dim]
//   weight      [1, dim]
//   statistics  [rows, 2], of NormForward
void NormBackwardInput(const device::Stream& stream, NormKind kind, const Matrix& dy,
                       const Matrix& x, const Matrix& weight,
                       const Matrix& statistics, const Matrix& dx, bool accumulate);

// dweight += , dbias += (unless Empty()); the same bits for any number of threads. CPU only.
//   dy, x           [rows, dim]
//   dweight, dbias  [1, dim]
//   statistics      [rows, 2], of NormForward
//   scratch         [kReductionBlocks, 2 * dim]
void NormBackwardWeight(const device::Stream& stream, const Matrix& dy,
                        const Matrix& x, const Matrix& statistics,
                        const Matrix& dweight, const Matrix& dbias,
                        const Matrix& scratch);

// A residual addition and the norm after it in one pass: sum = residual + dropout(branch + bias), y
// = norm(sum), statistics as in NormForward. Matrices: [rows, dim]; weight, norm_bias, bias: [1,
// dim]; both biases may be Empty(). branch is only read; sum may be residual or branch.
void ResidualNormForward(const device::Stream& stream, NormKind kind,
                         const Matrix& residual, const Matrix& branch,
                         const Matrix& bias, const Dropout& dropout,
                         const Matrix& sum, const Matrix& weight,
                         const Matrix& norm_bias, double epsilon, const Matrix& y,
                         const Matrix& statistics);

// The backward pass of a norm and of the dropout before it in one pass. With g = dy + more:
//   dx = residual + gradient of g through the norm
//   dbranch = gradient of dx through the dropout
//   dweight += , dbias += weight gradients of the norm, as in NormBackwardWeight
// Empty() means: more = 0, residual = 0; dbranch, dweight, dbias not wanted. dx may be residual, dy
// or more; dbranch is none of them.
//   dy, more, x, residual, dx, dbranch  [rows, dim]
//   weight, dweight, dbias              [1, dim]
//   statistics                          [rows, 2], of NormForward
//   scratch                             [kReductionBlocks, 2 * dim]
struct NormBackwardPass {
  NormKind kind = NormKind::kLayerNorm;
  Matrix dy = {}, more = {}, x = {}, weight = {}, statistics = {}, residual = {};
  Dropout dropout = {};
  Matrix dx = {}, dbranch = {}, dweight = {}, dbias = {}, scratch = {};
};
void NormBackward(const device::Stream& stream, const NormBackwardPass& pass);

// Number of blocks that a sum over rows is cut into, to be added up in order: fixed, whatever the
// number of threads.
inline constexpr int kReductionBlocks = 16;

// sums += sum over rows of x. x: [rows, columns], sums: [1, columns], scratch: [kReductionBlocks,
// columns].
void ColumnSum(const device::Stream& stream, const Matrix& x, const Matrix& sums,
               const Matrix& scratch);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_NORM_HPP_
