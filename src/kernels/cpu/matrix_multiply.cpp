// matrix_multiply: which product computes it. Our own on canonical and bf16 streams, else the
// library's; oneDNN's in bf16 too where the CPU has AMX, which our own does not know.
#include "trireme/kernels/matrix_multiply.hpp"

#include "canonical_multiply.hpp"
#include "matrix_library.hpp"
#include "no_product.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace {

// Multiply-adds below which rounding both operands beforehand and calling the library would take
// longer than our own product on AVX512-BF16 (some microseconds).
constexpr std::int64_t kLeastForAmx = 64 * 64 * 128;

void MultiplyBf16(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                  const tensor::Matrix& b, const tensor::Matrix& c, std::int64_t inner,
                  bool accumulate) {
  static const bool amx = device::Bf16Instructions() == "AMX";
  const Bf16Kernels* kernels = UsableBf16Kernels();
  if (kernels == nullptr) {
    throw RunError("This CPU has no instructions that multiply bf16.",
                   "Choose run.precision = fp32, or a machine whose CPUs have AVX512-BF16 or AMX.");
  }
  if (stream.canonical) {
    throw RunError("There is no canonical product in bf16.",
                   "Choose run.precision = fp32 with run.canonical.");
  }
  if (amx && c.rows * c.columns * inner >= kLeastForAmx) {
    return LibraryBf16Multiply(stream, form_a, a, form_b, b, c, accumulate);
  }
  Bf16Multiply(*kernels, stream, form_a, a, form_b, b, c, accumulate);
}

}  // namespace

void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate) {
  const std::int64_t inner = form_a == Form::kPlain ? a.columns : a.rows;
  if (NoProduct(inner, c, accumulate)) return;
  if (stream.bf16 && c.dtype == Dtype::kFloat32) {
    return MultiplyBf16(stream, form_a, a, form_b, b, c, inner, accumulate);
  }
  if (stream.canonical) {
    return CanonicalMultiply(UsableCanonicalKernels()[0], stream, form_a, a, form_b, b, c,
                             accumulate);
  }
  LibraryMultiply(form_a, a, form_b, b, c, accumulate);
}

void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate,
                    FunctionRef<void(const Part& rows)> then) {
  MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate);
  then({0, c.rows});
}

}  // namespace trireme::kernels
