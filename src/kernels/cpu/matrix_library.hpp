// Products of the matrix library that the build has chosen, oneDNN or OpenBLAS.
#pragma once

#include "trireme/kernels/linear.hpp"

namespace trireme::kernels {

// The operands of MatrixMultiply. Below, all dimensions must be > 0.
struct MatrixProduct {
  Form form_a;
  Matrix a;
  Form form_b;
  Matrix b, c;
  bool accumulate;

  std::int64_t Inner() const { return form_a == Form::kPlain ? a.columns : a.rows; }
};

// The library's product in the operands' dtype.
void LibraryMultiply(const MatrixProduct& product);

// The library's fp32 product of copies that are rounded to bf16, a piece of the right operand at a
// time, so that the copies stay small.
void MultiplyRoundedCopies(const device::Stream& stream, const MatrixProduct& product);

// The library's product of fp32 operands rounded to bf16; the CPU must have UsableBf16Kernels(). If
// the library has no bf16 product, this calls ours.
void LibraryBf16Multiply(const device::Stream& stream, const MatrixProduct& product);

}  // namespace trireme::kernels
