// Element-wise passes around the products: biases, the residual stream, activations.
#ifndef TRIREME_KERNELS_ELEMENTWISE_HPP_
#define TRIREME_KERNELS_ELEMENTWISE_HPP_

#include "trireme/kernels/dropout.hpp"

namespace trireme::kernels {

// x += bias in each row. x: [rows, columns], bias: [1, columns].
void AddBias(const device::Stream& stream, const Matrix& x, const Matrix& bias);

// out = residual + dropout(branch + bias), [rows, dim]. bias: [1, dim] or Empty(). branch may be
// overwritten; out may be residual or branch.
void ResidualForward(const device::Stream& stream, const Matrix& residual,
                     const Matrix& branch, const Matrix& bias,
                     const Dropout& dropout, const Matrix& out);

// x = 0. [rows, columns].
void Clear(const device::Stream& stream, const Matrix& x);

// y = x, element by element. [rows, columns].
void Copy(const device::Stream& stream, const Matrix& x, const Matrix& y);

// y += x, element by element. [rows, columns].
void Add(const device::Stream& stream, const Matrix& x, const Matrix& y);

enum class ActivationKind { kRelu, kGelu, kSwiglu };

// pre += bias (unless Empty()), then out = dropout(act(pre)). out: [rows, ffn], overwritten.
//   kRelu, kGelu  pre: [rows, ffn]; kGelu in tanh form (Hendrycks and Gimpel 2016); kRelu allows
//                 out = pre
//   kSwiglu       pre: [rows, 2 ffn], gate then up; out = silu(gate) * up (Shazeer 2020)
void ActivationForward(const device::Stream& stream, ActivationKind kind, const Matrix& pre,
                       const Matrix& bias, const Dropout& dropout,
                       const Matrix& out);

// dpre (overwritten, of the shape of pre) from dout, [rows, ffn]. `pre`: as the forward pass left
// it; for kRelu the `out` of the forward pass. All kinds allow dpre = pre (the same memory and
// stride), kRelu and kGelu also dpre = dout.
void ActivationBackward(const device::Stream& stream, ActivationKind kind,
                        const Matrix& pre, const Dropout& dropout,
                        const Matrix& dout, const Matrix& dpre);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_ELEMENTWISE_HPP_
