// The one seam of every matrix product.
#ifndef TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_
#define TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_

#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/tensor/matrix.hpp"

namespace trireme::kernels {

enum class Form { kPlain, kTransposed };

// c = form_a(a) form_b(b), or c += where `accumulate`. c: [M, N]; strides are free; any dimension
// may be 0 (an empty sum is 0). All of one dtype. The library runs with the threads that
// device::ConfigureThreads set, inside an OpenMP parallel region on the calling thread alone.
//
// On a canonical stream the product is Trireme's own, with the stream's threads, and every element
// of c is one chain of operations: for each block of 256 inner indices, from the first, c = c + s
// where s starts from 0 and takes s = fma(a, b, s) in the order of the indices; c starts from +0
// without `accumulate`. Its bits depend on its row of form_a(a), its column of form_b(b) and their
// length alone.
//
// On a bf16 stream the operands of fp32 products are rounded to bf16 (to nearest, ties to even;
// what is subnormal in bf16 may count as 0) and added up in fp32. There is no canonical form of
// it: a stream that asks for both, like a CPU without bf16 instructions, is a run error.
void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate);

// The same, and then(rows) for ranges of rows of c that together are all of them, each once and as
// soon as it is complete, by the thread in whose cache it lies: what an epilogue is (a bias, an
// activation). Ranges may be handled at the same time by different threads; then must not throw,
// nor multiply with another `then`. On canonical streams the bits are the same as without;
// elsewhere another product may compute it.
void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate,
                    FunctionRef<void(const Part& rows)> then);

// Name and version of the library behind it, for --version: "oneDNN 2.6.3".
const char* MatrixLibrary();

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_
