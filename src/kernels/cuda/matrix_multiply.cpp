// matrix_multiply on the GPU: c is overwritten, or added to with `accumulate`.
#include "backends.hpp"
#include "cuda/libraries.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

void cuda::MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a,
                          Form form_b, const Matrix& b, const Matrix& c,
                          bool accumulate) {
  if (stream.canonical) {
    throw RunError("There is no canonical product on a GPU.",
                   "Choose run.device = cpu with run.canonical.");
  }
  if (c.rows == 0 || c.columns == 0) return;
  const Product product = MakeProduct(form_a, a, form_b, b, c, accumulate);
  if (product.inner > 0) return Multiply(stream, product);
  if (!accumulate) cuda::Clear(stream, c);
}

void cuda::MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a,
                          Form form_b, const Matrix& b, const Matrix& c,
                          bool accumulate, FunctionRef<void(const Part& rows)> then) {
  cuda::MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate);
  then({0, c.rows});
}

}  // namespace trireme::kernels
