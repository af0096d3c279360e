// Matrix products: every product of the program passes through here.
#ifndef TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_
#define TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_

#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

enum class Form { kPlain, kTransposed };

// c = form_a(a) form_b(b), or c += with `accumulate`. c: [M, N]; strides are free; any dimension
// may be 0 (an empty sum is 0). All of one dtype. The matrix library runs with the threads set by
// device::ConfigureThreads, inside an OpenMP parallel region on the calling thread alone.
//
// On a canonical stream the product is Trireme's own, with the stream's threads, and each element
// of c is one chain of operations: for each block of 256 inner indices, in order, c = c + s, with s
// starting at 0 and s = fma(a, b, s) in the order of the indices; c starts at +0 without
// `accumulate`. The bits of an element depend on its row of form_a(a), its column of form_b(b) and
// their length alone.
//
// On a bf16 stream the operands of fp32 products are rounded to bf16 (to nearest, ties to even;
// bf16 subnormals may count as 0) and added up in fp32. RunError if the stream is canonical too, or
// the CPU has no bf16 instructions.
void MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                    const Matrix& b, const Matrix& c, bool accumulate);

// The same with an epilogue (a bias, an activation): calls then(rows) for ranges of rows of c, each
// row once, as soon as a range is complete, by the thread that has it in its cache. Several threads
// may call it at once; it must neither throw nor multiply with another `then`. On canonical streams
// the bits are the same as without; on others a different algorithm may compute the product.
void MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                    const Matrix& b, const Matrix& c, bool accumulate,
                    FunctionRef<void(const Part& rows)> then);

// Name and version of the CPU's matrix library, for --version: "oneDNN 2.6.3".
const char* MatrixLibrary();

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_
