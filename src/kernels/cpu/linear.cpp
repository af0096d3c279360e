// Linear layers on the CPU: the pass after a product runs on blocks of its rows, by the thread that
// has them in its cache. LinearWeightGradient accumulates, everything else is overwritten.
#include <omp.h>

#include <algorithm>

#include "backends.hpp"
#include "thin_product.hpp"
#include "trireme/kernels/thin_panels.hpp"

namespace trireme::kernels {


namespace {

Form Opposite(Form form) { return form == Form::kPlain ? Form::kTransposed : Form::kPlain; }

Matrix Of(const Matrix& m, const Part& rows) { return m.Rows(rows.begin, rows.Size()); }

// y = x form(weight), then `then` for each row.
void Multiply(const device::Stream& stream, const Linear& linear, const Matrix& x, const Matrix& y,
              FunctionRef<void(const Part& rows)> then) {
  const bool thin =
      linear.thin && x.rows <= kThinRows && x.columns > 0 && HasThinProducts(stream, y.dtype);
  if (!thin) {
    return cpu::MatrixMultiply(stream, Form::kPlain, x, linear.form, linear.weight, y, false, then);
  }
  ThinMultiply(UsableThinKernels()[0], stream, x, linear.form, linear.weight, y, linear.panels);
  const auto most = static_cast<std::int64_t>(omp_in_parallel() != 0 ? 1 : stream.threads);
  const int threads = static_cast<int>(std::clamp<std::int64_t>(y.rows, 1, most));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (std::int64_t row = 0; row < y.rows; ++row) then({row, row + 1});
}

}  // namespace

void cpu::LinearForward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                        const Matrix& bias, const Matrix& y,
                        FunctionRef<void(const Part& rows)> then) {
  Multiply(stream, linear, x, y, [&](const Part& rows) {
    if (!bias.Empty()) cpu::AddBias(stream.Serial(), Of(y, rows), bias);
    then(rows);
  });
}

void cpu::LinearActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                           const Matrix& bias, ActivationKind kind, const Dropout& dropout,
                           const Matrix& pre, const Matrix& out) {
  Multiply(stream, linear, x, pre, [&](const Part& rows) {
    cpu::ActivationForward(stream.Serial(), kind, Of(pre, rows), bias, dropout.From(rows.begin),
                           Of(out, rows));
  });
}

void cpu::LinearInputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                              const Matrix& dx) {
  cpu::MatrixMultiply(stream, Form::kPlain, dy, Opposite(linear.form), linear.weight, dx, false);
}

void cpu::LinearActivationGradient(const device::Stream& stream, const Linear& linear,
                                   const Matrix& dy, ActivationKind kind, const Matrix& from,
                                   const Dropout& dropout, const Matrix& dhidden,
                                   const Matrix& dpre) {
  cpu::MatrixMultiply(stream, Form::kPlain, dy, Opposite(linear.form), linear.weight, dhidden,
                      false, [&](const Part& rows) {
                        cpu::ActivationBackward(stream.Serial(), kind, Of(from, rows),
                                                dropout.From(rows.begin), Of(dhidden, rows),
                                                Of(dpre, rows));
                      });
}

void cpu::LinearWeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                               const Matrix& dy, const Matrix& dweight) {
  const bool transposed = linear.form == Form::kTransposed;
  cpu::MatrixMultiply(stream, Form::kTransposed, transposed ? dy : x, Form::kPlain,
                      transposed ? x : dy, dweight, true);
}

}  // namespace trireme::kernels
