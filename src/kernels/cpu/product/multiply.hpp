// Our own matrix product, in fp32, fp64 and bf16. In fp32 and fp64 it has the canonical form: each
// element of c is one chain of operations, whatever the rest of the matrix, the number of threads
// and the instruction set (doc/numerics.md). In bf16 operands are rounded while they are packed.
#ifndef TRIREME_SRC_KERNELS_CPU_PRODUCT_MULTIPLY_HPP_
#define TRIREME_SRC_KERNELS_CPU_PRODUCT_MULTIPLY_HPP_

#include <span>

#include "kernels.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels {

// Sets of kernels that this CPU can run, the fastest first; all give the same bits.
std::span<const ProductSet> UsableProductSets();

// Whether a set is made for this CPU, hence about as fast as a library.
bool HasFastKernels();

// Kernels in bf16 for this CPU; null if it has no bf16 instructions.
const Bf16Kernels* UsableBf16Kernels();

// c = form_a(a) form_b(b), or c += with `accumulate`, in canonical form, with these kernels; every
// dimension > 0. Uses the stream's threads, inside a parallel region the calling one alone.
void ProductMultiply(const ProductSet& kernels, const device::Stream& stream, Form form_a,
                     const Matrix& a, Form form_b, const Matrix& b,
                     const Matrix& c, bool accumulate);

// The same product of fp32 matrices, with operands rounded to bf16 and sums in fp32: blocks of 512
// inner indices, added to c in order.
void Bf16Multiply(const Bf16Kernels& kernels, const device::Stream& stream, Form form_a,
                  const Matrix& a, Form form_b, const Matrix& b,
                  const Matrix& c, bool accumulate);

// The same products, with the same bits, in blocks of rows; the thread of a block calls then(rows)
// when it is complete. False, with nothing done, if the right operand is too large to be packed.
bool ProductMultiplyRows(const ProductSet& kernels, const device::Stream& stream, Form form_a,
                         const Matrix& a, Form form_b, const Matrix& b,
                         const Matrix& c, bool accumulate,
                         FunctionRef<void(const Part& rows)> then);
bool Bf16MultiplyRows(const Bf16Kernels& kernels, const device::Stream& stream, Form form_a,
                      const Matrix& a, Form form_b, const Matrix& b,
                      const Matrix& c, bool accumulate,
                      FunctionRef<void(const Part& rows)> then);

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_PRODUCT_MULTIPLY_HPP_
