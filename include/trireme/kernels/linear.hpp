// Matrix products of a linear layer, each with the bias, activation or gradient that follows: in
// the product's epilogue if the matrix library has one, else in a separate pass.
#ifndef TRIREME_KERNELS_LINEAR_HPP_
#define TRIREME_KERNELS_LINEAR_HPP_

#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels {

// A linear layer of the model: y = x form(weight). weight: [out, in] with Form::kTransposed, [in,
// out] with Form::kPlain.
struct Linear {
  int site = -1;  // number in the model, under which fp8 scales are kept; < 0: never fp8
  Form form = Form::kTransposed;
  Matrix weight;
  // There are few rows. On the CPU LinearForward and LinearActivation then run at the speed of the
  // weight's memory, with other rounding; canonical and bf16 streams keep their own products.
  bool thin = false;
  const void* panels = nullptr;  // the weight's second copy for thin products (thin_panels.hpp)
};

// y = x form(weight) + bias, then `then` as in MatrixMultiply. x: [rows, in]; bias: [1, out] or
// Empty(); y: [rows, out], overwritten.
void LinearForward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                   const Matrix& bias, const Matrix& y,
                   FunctionRef<void(const Part& rows)> then);

// pre = x form(weight) + bias, out = dropout(act(pre)), with pre and out as in ActivationForward.
// x: [rows, in]; bias: [1, out] or Empty(); pre, out: overwritten.
void LinearActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                      const Matrix& bias, ActivationKind kind, const Dropout& dropout,
                      const Matrix& pre, const Matrix& out);

// dx = dy form(weight)^T. dy: [rows, out]; dx: [rows, in], overwritten.
void LinearInputGradient(const device::Stream& stream, const Linear& linear,
                         const Matrix& dy, const Matrix& dx);

// dhidden = dy form(weight)^T, then dpre from it as in ActivationBackward: the gradient of the
// input of the activation before this layer. `from`: the activation's `pre`, for kRelu its output.
// dy: [rows, out]; dhidden: [rows, in], overwritten; dpre: of the shape of `from`, overwritten.
void LinearActivationGradient(const device::Stream& stream, const Linear& linear,
                              const Matrix& dy, ActivationKind kind,
                              const Matrix& from, const Dropout& dropout,
                              const Matrix& dhidden, const Matrix& dpre);

// dweight += x^T dy, transposed if linear.form is kTransposed. x: [rows, in]; dy: [rows, out];
// dweight: of the weight's shape and the sums' type. linear.weight is not read.
void LinearWeightGradient(const device::Stream& stream, const Linear& linear,
                          const Matrix& x, const Matrix& dy,
                          const Matrix& dweight);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_LINEAR_HPP_
