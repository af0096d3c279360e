// The one seam of every matrix product.
#ifndef TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_
#define TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_

#include "trireme/device/stream.hpp"
#include "trireme/tensor/matrix.hpp"

namespace trireme::kernels {

enum class Form { kPlain, kTransposed };

// c = form_a(a) form_b(b), or c += where `accumulate`. c: [M, N]; strides are free; any dimension
// may be 0 (an empty sum is 0). All of one dtype. The library runs with the threads that
// device::ConfigureThreads set, inside an OpenMP parallel region on the calling thread alone.
void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate);

// Name and version of the library behind it, for --version: "oneDNN 2.6.3".
const char* MatrixLibrary();

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_MATRIX_MULTIPLY_HPP_
