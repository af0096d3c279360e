// Products of oneDNN: dnnl_sgemm in fp32. In fp64, which oneDNN does not multiply, Eigen's. Both
// run on the calling thread alone inside a parallel region.
#include <dnnl.h>
#include <fmt/format.h>

#include <Eigen/Core>
#include <string>

#include "matrix_library.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;

View AsEigen(const Matrix& m) {
  return {m.As<double>(), m.rows, m.columns, Eigen::OuterStride<>(m.stride)};
}

template <typename A, typename B>
void Assign(const A& a, const B& b, View c, bool accumulate) {
  if (accumulate) {
    c.noalias() += a * b;
  } else {
    c.noalias() = a * b;
  }
}

void MultiplyDouble(Form form_a, const Matrix& a, Form form_b, const Matrix& b,
                    const Matrix& c, bool accumulate) {
  const View left = AsEigen(a), right = AsEigen(b);
  const View out = AsEigen(c);
  if (form_a == Form::kPlain && form_b == Form::kPlain) {
    Assign(left, right, out, accumulate);
  } else if (form_a == Form::kPlain) {
    Assign(left, right.transpose(), out, accumulate);
  } else if (form_b == Form::kPlain) {
    Assign(left.transpose(), right, out, accumulate);
  } else {
    Assign(left.transpose(), right.transpose(), out, accumulate);
  }
}

}  // namespace

void LibraryMultiply(Form form_a, const Matrix& a, Form form_b, const Matrix& b,
                     const Matrix& c, bool accumulate) {
  if (c.dtype == Dtype::kFloat64) return MultiplyDouble(form_a, a, form_b, b, c, accumulate);
  const std::int64_t inner = form_a == Form::kPlain ? a.columns : a.rows;
  const dnnl_status_t status =
      dnnl_sgemm(form_a == Form::kPlain ? 'N' : 'T', form_b == Form::kPlain ? 'N' : 'T', c.rows,
                 c.columns, inner, 1.0f, a.As<float>(), a.stride, b.As<float>(), b.stride,
                 accumulate ? 1.0f : 0.0f, c.As<float>(), c.stride);
  if (status == dnnl_success) return;
  throw RunError(
      fmt::format("oneDNN refused the product of {} x {} x {}: {}", c.rows, inner, c.columns,
                  status == dnnl_out_of_memory ? "out of memory" : "invalid arguments"),
      "Lower data.micro_batch, or use fewer ranks on a node.");
}

const char* MatrixLibrary() {
  static const std::string text = [] {
    const dnnl_version_t* version = dnnl_version();
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch);
  }();
  return text.c_str();
}

}  // namespace trireme::kernels
