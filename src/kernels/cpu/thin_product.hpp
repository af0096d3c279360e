// Products with few rows, at the speed of the memory that holds their right operand.
#ifndef TRIREME_SRC_KERNELS_CPU_THIN_PRODUCT_HPP_
#define TRIREME_SRC_KERNELS_CPU_THIN_PRODUCT_HPP_

#include <span>

#include "thin_kernels.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels {

// Kernels that this CPU can run, the fastest first. Their sums have different orders.
std::span<const ThinKernels> UsableThinKernels();

// y = x form(weight), with these kernels and the stream's threads. x: [rows, in], rows <=
// kThinRows; y: [rows, out], overwritten. panels: the weight's second copy (PackPanels) or null.
// The bits of y depend on neither the number of threads nor on panels.
void ThinMultiply(const ThinKernels& kernels, const device::Stream& stream, const Matrix& x,
                  Form form, const Matrix& weight, const Matrix& y,
                  const void* panels = nullptr);

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_THIN_PRODUCT_HPP_
