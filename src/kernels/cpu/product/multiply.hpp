// The product of our own. Its canonical form: every element of c by the same chain of operations,
// whatever the rest of the matrix, the number of threads and the instruction set
// (doc/numerics.md). In bf16: operands are rounded while they are packed.
#ifndef TRIREME_KERNELS_CPU_PRODUCT_MULTIPLY_HPP_
#define TRIREME_KERNELS_CPU_PRODUCT_MULTIPLY_HPP_

#include <span>

#include "kernels.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels {

// Those that this CPU can run, the fastest first; all give the same bits.
std::span<const CanonicalKernels> UsableCanonicalKernels();

// Whether those are made for this CPU, and so about as fast as a library's.
bool HasFastKernels();

// That of this CPU, or null.
const Bf16Kernels* UsableBf16Kernels();

// MatrixMultiply of a canonical stream, every dimension > 0, with these kernels. Threads of the
// stream, inside a parallel region the calling one alone.
void CanonicalMultiply(const CanonicalKernels& kernels, const device::Stream& stream, Form form_a,
                       const tensor::Matrix& a, Form form_b, const tensor::Matrix& b,
                       const tensor::Matrix& c, bool accumulate);

// The same of a bf16 stream, in fp32: blocks of 512 inner indices, added to c in order.
void Bf16Multiply(const Bf16Kernels& kernels, const device::Stream& stream, Form form_a,
                  const tensor::Matrix& a, Form form_b, const tensor::Matrix& b,
                  const tensor::Matrix& c, bool accumulate);

// The same in blocks of rows, each handed to then(rows) as soon as it is complete, by its thread.
// The same bits. False, and nothing done, where the right operand is too large for it.
bool CanonicalMultiplyRows(const CanonicalKernels& kernels, const device::Stream& stream,
                           Form form_a, const tensor::Matrix& a, Form form_b,
                           const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate,
                           FunctionRef<void(const Part& rows)> then);
bool Bf16MultiplyRows(const Bf16Kernels& kernels, const device::Stream& stream, Form form_a,
                      const tensor::Matrix& a, Form form_b, const tensor::Matrix& b,
                      const tensor::Matrix& c, bool accumulate,
                      FunctionRef<void(const Part& rows)> then);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_PRODUCT_MULTIPLY_HPP_
