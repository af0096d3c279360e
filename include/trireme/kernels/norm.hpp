// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019).
#ifndef TRIREME_KERNELS_NORM_HPP_
#define TRIREME_KERNELS_NORM_HPP_

#include "trireme/kernels/dropout.hpp"

namespace trireme::kernels {

enum class NormKind { kLayerNorm, kRmsNorm };

// y = (x - mean) * rstd * weight + bias over the columns (RMSNorm: mean = 0). y overwritten; bias
// may be Empty(). x, y: [rows, dim]; weight, bias: [1, dim]; statistics: [rows, 2] = mean, rstd,
// dense (as all scratch: strides are not read).
void NormForward(const device::Stream& stream, NormKind kind, const tensor::Matrix& x,
                 const tensor::Matrix& weight, const tensor::Matrix& bias, double epsilon,
                 const tensor::Matrix& y, const tensor::Matrix& statistics);

// dx = gradient through the norm, or dx += where `accumulate` (dx may be dy where it does not).
void NormBackwardInput(const device::Stream& stream, NormKind kind, const tensor::Matrix& dy,
                       const tensor::Matrix& x, const tensor::Matrix& weight,
                       const tensor::Matrix& statistics, const tensor::Matrix& dx, bool accumulate);

// dweight += , dbias += (Empty(): none); the same bits for any number of threads.
// scratch: [kReductionBlocks, 2 * dim].
void NormBackwardWeight(const device::Stream& stream, const tensor::Matrix& dy,
                        const tensor::Matrix& x, const tensor::Matrix& statistics,
                        const tensor::Matrix& dweight, const tensor::Matrix& dbias,
                        const tensor::Matrix& scratch);

// A residual addition and the norm behind it in one pass: sum = residual + dropout(branch + bias),
// y = norm(sum), statistics as NormForward. bias may be Empty(); branch is only read; sum may be
// residual or branch. [rows, dim]; weight, norm_bias, bias: [1, dim].
void ResidualNormForward(const device::Stream& stream, NormKind kind,
                         const tensor::Matrix& residual, const tensor::Matrix& branch,
                         const tensor::Matrix& bias, const Dropout& dropout,
                         const tensor::Matrix& sum, const tensor::Matrix& weight,
                         const tensor::Matrix& norm_bias, double epsilon, const tensor::Matrix& y,
                         const tensor::Matrix& statistics);

// The backward pass of a norm and of the dropout in front of it in one pass. With g = dy + more:
//   dx = residual + gradient through the norm of g;   dbranch = dropout's gradient of dx;
//   dweight += , dbias += the norm's weight gradients, as NormBackwardWeight.
// Empty() means: more = 0, residual = 0, dbranch, dweight, dbias not wanted. dx may be residual, dy
// or more; dbranch is none of them. scratch: [kReductionBlocks, 2 * dim].
struct NormBackwardPass {
  NormKind kind = NormKind::kLayerNorm;
  tensor::Matrix dy = {}, more = {}, x = {}, weight = {}, statistics = {}, residual = {};
  Dropout dropout = {};
  tensor::Matrix dx = {}, dbranch = {}, dweight = {}, dbias = {}, scratch = {};
};
void NormBackward(const device::Stream& stream, const NormBackwardPass& pass);

// Sums over rows are cut into this many blocks of rows, added up in order: fixed, not a thread
// count.
inline constexpr int kReductionBlocks = 16;

// sums += sum over rows of x. x: [rows, columns], sums: [1, columns], scratch: [kReductionBlocks,
// columns].
void ColumnSum(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& sums,
               const tensor::Matrix& scratch);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_NORM_HPP_
