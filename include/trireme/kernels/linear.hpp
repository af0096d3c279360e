// The products of a linear layer with what follows them: biases, activations and their gradients,
// in the product's epilogue where the matrix library has it, else in a pass of their own.
#ifndef TRIREME_KERNELS_LINEAR_HPP_
#define TRIREME_KERNELS_LINEAR_HPP_

#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels {

// A linear layer of the model: y = x form(weight). weight: [out, in] with Form::kTransposed, [in,
// out] with Form::kPlain.
struct Linear {
  int site = -1;  // its number in the model, under which fp8 scales are kept; < 0: never fp8
  Form form = Form::kTransposed;
  tensor::Matrix weight;
};

// y = x form(weight) + bias, then `then` as in MatrixMultiply. bias: [1, out] or Empty(). x: [rows,
// in], y: [rows, out].
void LinearForward(const device::Stream& stream, const Linear& linear, const tensor::Matrix& x,
                   const tensor::Matrix& bias, const tensor::Matrix& y,
                   FunctionRef<void(const Part& rows)> then);

// pre = x form(weight) + bias, out = dropout(act(pre)), as ActivationForward has them.
void LinearActivation(const device::Stream& stream, const Linear& linear, const tensor::Matrix& x,
                      const tensor::Matrix& bias, ActivationKind kind, const Dropout& dropout,
                      const tensor::Matrix& pre, const tensor::Matrix& out);

// dx = dy form(weight)^T, overwritten.
void LinearInputGradient(const device::Stream& stream, const Linear& linear,
                         const tensor::Matrix& dy, const tensor::Matrix& dx);

// dhidden = dy form(weight)^T, then dpre from it as ActivationBackward has it: the gradient of what
// went into the activation before this layer. `from`: its `pre`, for kRelu its output.
void LinearActivationGradient(const device::Stream& stream, const Linear& linear,
                              const tensor::Matrix& dy, ActivationKind kind,
                              const tensor::Matrix& from, const Dropout& dropout,
                              const tensor::Matrix& dhidden, const tensor::Matrix& dpre);

// dweight += x^T dy, or its transpose where the weight is kTransposed; of the sums' type.
// linear.weight is not read: dweight has its shape.
void LinearWeightGradient(const device::Stream& stream, const Linear& linear,
                          const tensor::Matrix& x, const tensor::Matrix& dy,
                          const tensor::Matrix& dweight);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_LINEAR_HPP_
