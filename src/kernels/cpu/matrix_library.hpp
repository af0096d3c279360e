// Products of the matrix library chosen by the build, oneDNN or OpenBLAS.
#pragma once

#include "trireme/kernels/linear.hpp"

namespace trireme::kernels {

// The library's product in the operands' dtype, every dimension > 0.
void LibraryMultiply(Form form_a, const Matrix& a, Form form_b, const Matrix& b, const Matrix& c,
                     bool accumulate);

// The library's product of fp32 operands rounded to bf16, every dimension > 0; needs a CPU with
// UsableBf16Kernels(). A library without a bf16 product falls back to ours.
void LibraryBf16Multiply(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                         const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace trireme::kernels
