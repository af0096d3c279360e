// A second copy of a linear layer's weight, in the order in which products of a few rows read it:
// panels of as many outputs as two cache lines hold, and in a panel one inner index after another.
#ifndef TRIREME_KERNELS_THIN_PANELS_HPP_
#define TRIREME_KERNELS_THIN_PANELS_HPP_

#include <cstdint>

#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels {

// Most rows of a thin product (Linear::thin).
std::int64_t MostThinRows();
// Whether a stream's products of this type may be thin: on CPUs, neither canonical nor in bf16.
bool HasThinProducts(const device::Stream& stream, Dtype dtype);

// Bytes of the panels of a weight, [out, in] with Form::kTransposed, [in, out] with Form::kPlain.
std::int64_t PanelBytes(Form form, const Matrix& weight);
// Copies the weight to its panels, by the stream's threads. panels: PanelBytes(), on a boundary of
// 64 bytes.
void PackPanels(const device::Stream& stream, Form form, const Matrix& weight,
                void* panels);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_THIN_PANELS_HPP_
