// Products of a linear layer with fp8 operands. The library multiplies fp8 only if the inner index
// is contiguous in both operands: operands are rounded and, if necessary, transposed in one pass.
// All functions return false, with nothing done, if a product cannot take fp8.
#ifndef TRIREME_SRC_KERNELS_CUDA_LINEAR_FP8_HPP_
#define TRIREME_SRC_KERNELS_CUDA_LINEAR_FP8_HPP_

#include "backends.hpp"
#include "cuda/libraries.hpp"

namespace trireme::kernels::cuda {

// Whether a product of x [rows, inner] into y [rows, columns] of this layer takes fp8 operands: the
// stream says so, the layer has a site, types are bf16, every dimension is a multiple of 16, and
// rows of y begin on 16 bytes.
bool Fp8Takes(const device::Stream& stream, const Linear& linear, const Matrix& x,
              const Matrix& y);

// y = x form(weight) + bias; bias may be Empty().
bool Fp8Forward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                const Matrix& bias, const Matrix& y);
// dx = dy form(weight)^T.
bool Fp8InputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                      const Matrix& dx);
// dweight += x^T dy, or its transpose.
bool Fp8WeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                       const Matrix& dy, const Matrix& dweight);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_LINEAR_FP8_HPP_
