// embedding: forward overwrites out; backward masks dout in place and accumulates into dweight and
// dpositions. Rows are added in order, each table row by one thread: no float atomics.
#include "trireme/kernels/embedding.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "row_mask.hpp"

namespace trireme::kernels {

void EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens,
                      const tensor::Matrix& weight, const tensor::Matrix& positions, double scale,
                      const Dropout& dropout, const tensor::Matrix& out) {
  DispatchDtype(out.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel num_threads(stream.threads)
    {
      RowMask mask(dropout, out.columns);
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < out.rows; ++row) {
        T* to = out.As<T>() + row * out.stride;
        rows::Affine(weight.As<T>() + tokens[row] * weight.stride, T(scale), T(0), to, out.columns);
        if (!positions.Empty()) {
          rows::Axpy(T(1), positions.As<T>() + row % dropout.length * positions.stride, to,
                     out.columns);
        }
        if (mask.Active()) mask.Apply(row, to, to, out.columns);
      }
    }
  });
}

void EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens, double scale,
                       const Dropout& dropout, const tensor::Matrix& dout,
                       const tensor::Matrix& dweight, const tensor::Matrix& dpositions) {
  if (dropout.Active()) DropoutForward(stream, dout, dropout, dout);
  DispatchDtype(dout.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel num_threads(stream.threads)
    {
      // Token t belongs to thread t % threads: each thread walks all rows and adds its own.
      const int thread = omp_get_thread_num();
      const int threads = omp_get_num_threads();
      for (std::int64_t row = 0; row < dout.rows; ++row) {
        if (tokens[row] % threads != thread) continue;
        rows::Axpy(T(scale), dout.As<T>() + row * dout.stride,
                   dweight.As<T>() + tokens[row] * dweight.stride, dout.columns);
      }
      if (!dpositions.Empty()) {
        const std::int64_t length = std::min(dropout.length, dout.rows);
#pragma omp for schedule(static)
        for (std::int64_t position = 0; position < length; ++position) {
          for (std::int64_t row = position; row < dout.rows; row += dropout.length) {
            rows::Axpy(T(1), dout.As<T>() + row * dout.stride,
                       dpositions.As<T>() + position * dpositions.stride, dout.columns);
          }
        }
      }
    }
  });
}

void SinusoidalPositions(const tensor::Matrix& table) {
  DispatchDtype(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t t = 0; t < table.rows; ++t) {
      for (std::int64_t i = 0; i < table.columns; ++i) {
        const double exponent = static_cast<double>(i - i % 2) / static_cast<double>(table.columns);
        const double angle = static_cast<double>(t) / std::pow(10000.0, exponent);
        table.As<T>()[t * table.stride + i] =
            static_cast<T>(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
    }
  });
}

}  // namespace trireme::kernels
