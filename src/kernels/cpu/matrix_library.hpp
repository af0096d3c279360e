// Products of the matrix library that the build has chosen, oneDNN or OpenBLAS.
#pragma once

#include "trireme/kernels/linear.hpp"

namespace trireme::kernels {

// The library's product in the operands' dtype. All dimensions must be > 0.
void LibraryMultiply(Form form_a, const Matrix& a, Form form_b, const Matrix& b, const Matrix& c,
                     bool accumulate);

// The library's product of fp32 operands rounded to bf16. All dimensions must be > 0, and the CPU
// must have UsableBf16Kernels(). If the library has no bf16 product, this calls ours.
void LibraryBf16Multiply(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                         const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace trireme::kernels
