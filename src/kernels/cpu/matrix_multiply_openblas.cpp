// Products of OpenBLAS, chosen by -DTRIREME_MATMUL=openblas. Its OpenMP build uses the calling
// thread alone inside a parallel region. Not used for bf16.
#include <cblas.h>

#include <string>

#include "cpu/product/multiply.hpp"
#include "matrix_library.hpp"

namespace trireme::kernels {

void LibraryMultiply(const MatrixProduct& product) {
  const auto& [form_a, a, form_b, b, c, accumulate] = product;
  const auto inner = static_cast<blasint>(product.Inner());
  const auto op_a = form_a == Form::kPlain ? CblasNoTrans : CblasTrans;
  const auto op_b = form_b == Form::kPlain ? CblasNoTrans : CblasTrans;
  const auto rows = static_cast<blasint>(c.rows), columns = static_cast<blasint>(c.columns);
  const auto lda = static_cast<blasint>(a.stride), ldb = static_cast<blasint>(b.stride);
  const auto ldc = static_cast<blasint>(c.stride);
  if (c.dtype == Dtype::kFloat64) {
    cblas_dgemm(CblasRowMajor, op_a, op_b, rows, columns, inner, 1.0, a.As<double>(), lda,
                b.As<double>(), ldb, accumulate ? 1.0 : 0.0, c.As<double>(), ldc);
  } else {
    cblas_sgemm(CblasRowMajor, op_a, op_b, rows, columns, inner, 1.0f, a.As<float>(), lda,
                b.As<float>(), ldb, accumulate ? 1.0f : 0.0f, c.As<float>(), ldc);
  }
}

void LibraryBf16Multiply(const device::Stream& stream, const MatrixProduct& product) {
  Bf16Multiply(*UsableBf16Kernels(), stream, product);
}

const char* MatrixLibrary() {
  static const std::string text = openblas_get_config();
  return text.c_str();
}

}  // namespace trireme::kernels
