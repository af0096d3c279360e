// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019).
#ifndef TRIREME_KERNELS_NORM_HPP_
#define TRIREME_KERNELS_NORM_HPP_

#include "trireme/device/stream.hpp"
#include "trireme/tensor/matrix.hpp"

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

// Sums over rows are cut into this many blocks of rows, added up in order: fixed, not a thread
// count.
inline constexpr int kReductionBlocks = 16;

// sums += sum over rows of x. x: [rows, columns], sums: [1, columns], scratch: [kReductionBlocks,
// columns].
void ColumnSum(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& sums,
               const tensor::Matrix& scratch);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_NORM_HPP_
