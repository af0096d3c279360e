// Linear layers on the CPU: the pass after a product runs on blocks of its rows, by the thread that
// has them in its cache. LinearWeightGradient accumulates, everything else is overwritten.
#include "backends.hpp"

namespace trireme::kernels {

using tensor::Matrix;

namespace {

Form Opposite(Form form) { return form == Form::kPlain ? Form::kTransposed : Form::kPlain; }

Matrix Of(const Matrix& m, const Part& rows) { return m.Rows(rows.begin, rows.Size()); }

}  // namespace

void cpu::LinearForward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                        const Matrix& bias, const Matrix& y,
                        FunctionRef<void(const Part& rows)> then) {
  cpu::MatrixMultiply(stream, Form::kPlain, x, linear.form, linear.weight, y, false,
                      [&](const Part& rows) {
                        if (!bias.Empty()) cpu::AddBias(stream.Serial(), Of(y, rows), bias);
                        then(rows);
                      });
}

void cpu::LinearActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                           const Matrix& bias, ActivationKind kind, const Dropout& dropout,
                           const Matrix& pre, const Matrix& out) {
  cpu::MatrixMultiply(stream, Form::kPlain, x, linear.form, linear.weight, pre, false,
                      [&](const Part& rows) {
                        cpu::ActivationForward(stream.Serial(), kind, Of(pre, rows), bias,
                                               dropout.From(rows.begin), Of(out, rows));
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
