// matrix_multiply: the choice between our own product (on canonical and bf16 streams, and where it
// is faster) and the library's (in bf16 only on CPUs with AMX, which our own does not use).
#include "trireme/kernels/matrix_multiply.hpp"
#include "backends.hpp"

#include <omp.h>

#include <algorithm>

#include "matrix_library.hpp"
#include "no_product.hpp"
#include "product/multiply.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace {

// Multiply-adds below which rounding both operands beforehand and calling the library would take
// longer than our own product on AVX512-BF16 (some microseconds).
constexpr std::int64_t kLeastForAmx = 64 * 64 * 128;

bool MultipliesWithAmx() {
  static const bool amx = device::Bf16Instructions() == "AMX";
  return amx;
}

void MultiplyBf16(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                  const Matrix& b, const Matrix& c, std::int64_t inner,
                  bool accumulate) {
  const Bf16Kernels* kernels = UsableBf16Kernels();
  if (kernels == nullptr) {
    throw RunError("This CPU has no instructions that multiply bf16.",
                   "Choose run.precision = fp32, or a machine whose CPUs have AVX512-BF16 or AMX.");
  }
  if (stream.canonical) {
    throw RunError("There is no canonical product in bf16.",
                   "Choose run.precision = fp32 with run.canonical.");
  }
  if (MultipliesWithAmx() && c.rows * c.columns * inner >= kLeastForAmx) {
    return LibraryBf16Multiply(stream, form_a, a, form_b, b, c, accumulate);
  }
  Bf16Multiply(*kernels, stream, form_a, a, form_b, b, c, accumulate);
}

// Whether our own product is the faster one in fp32. Speeds of own : oneDNN 2.6 measured on a Zen 5
// core: 1.1 to 1.25 below 2^18 multiply-adds, which end before the library is set up; 1.05 to 1.2
// for weight gradients whose left operand no cache holds and the library transposes beforehand,
// 0.85 to 0.95 for smaller ones; 1.15 with both operands transposed; otherwise 0.85 to 1.05.
bool OwnIsFaster(Form form_a, Form form_b, const Matrix& c, std::int64_t inner) {
  constexpr std::int64_t kSmall = 1 << 18, kLarge = 1 << 22;  // multiply-adds, elements
  if (!HasFastKernels() || c.dtype != Dtype::kFloat32) return false;
  if (c.rows * c.columns * inner < kSmall) return true;
  if (form_a == Form::kPlain) return false;
  return form_b == Form::kTransposed || c.rows * inner > kLarge;
}

// then(rows) by all threads, for rows that are complete.
void Follow(const device::Stream& stream, const Part& rows,
            FunctionRef<void(const Part& rows)> then) {
  const auto most = static_cast<std::int64_t>(omp_in_parallel() != 0 ? 1 : stream.threads);
  const int parts = static_cast<int>(std::clamp<std::int64_t>(rows.Size(), 1, most));
#pragma omp parallel for num_threads(parts) if (parts > 1)
  for (int part = 0; part < parts; ++part) {
    const Part share = PartOf(rows.Size(), part, parts);
    then({rows.begin + share.begin, rows.begin + share.end});
  }
}

// In blocks of rows, by our own product. False, with nothing done, if that would be slower.
bool MultiplyInRows(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                    const Matrix& b, const Matrix& c, bool accumulate,
                    FunctionRef<void(const Part& rows)> then) {
  if (stream.bf16 && c.dtype == Dtype::kFloat32) {
    if (stream.canonical || MultipliesWithAmx() || UsableBf16Kernels() == nullptr) return false;
    return Bf16MultiplyRows(*UsableBf16Kernels(), stream, form_a, a, form_b, b, c, accumulate,
                            then);
  }
  if (!stream.canonical && !HasFastKernels()) return false;
  return ProductMultiplyRows(UsableProductSets()[0], stream, form_a, a, form_b, b, c, accumulate,
                             then);
}

}  // namespace

void cpu::MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a,
                         Form form_b, const Matrix& b, const Matrix& c,
                         bool accumulate) {
  const std::int64_t inner = form_a == Form::kPlain ? a.columns : a.rows;
  if (NoProduct(inner, c, accumulate)) return;
  if (stream.bf16 && c.dtype == Dtype::kFloat32) {
    return MultiplyBf16(stream, form_a, a, form_b, b, c, inner, accumulate);
  }
  if (stream.canonical || OwnIsFaster(form_a, form_b, c, inner)) {
    return ProductMultiply(UsableProductSets()[0], stream, form_a, a, form_b, b, c, accumulate);
  }
  LibraryMultiply(form_a, a, form_b, b, c, accumulate);
}

void cpu::MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a,
                         Form form_b, const Matrix& b, const Matrix& c,
                         bool accumulate, FunctionRef<void(const Part& rows)> then) {
  // Of c, in a slice that is gone through again while a third-level cache holds it; the rows that
  // make up for packing the right operand for each.
  constexpr std::int64_t kSliceBytes = 16 << 20, kLeastRows = 1024;
  const std::int64_t inner = form_a == Form::kPlain ? a.columns : a.rows;
  if (c.rows == 0) return;
  const bool empty = c.columns == 0 || inner == 0;
  if (!empty && MultiplyInRows(stream, form_a, a, form_b, b, c, accumulate, then)) return;
  const auto row_bytes =
      std::max<std::int64_t>(1, c.columns * static_cast<std::int64_t>(SizeOf(c.dtype)));
  const int slices =
      static_cast<int>(CeilDivide(c.rows, std::max(kLeastRows, kSliceBytes / row_bytes)));
  for (int slice = 0; slice < slices; ++slice) {
    const Part rows = PartOf(c.rows, slice, slices);
    cpu::MatrixMultiply(stream, form_a,
                        form_a == Form::kPlain ? a.Rows(rows.begin, rows.Size())
                                               : a.Columns(rows.begin, rows.Size()),
                        form_b, b, c.Rows(rows.begin, rows.Size()), accumulate);
    Follow(stream, rows, then);
  }
}

}  // namespace trireme::kernels
