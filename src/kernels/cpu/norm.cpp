// norm: NormForward overwrites y and statistics; NormBackwardInput overwrites dx or accumulates
// into it; NormBackwardWeight accumulates, in kReductionBlocks blocks of rows whatever the number
// of threads.
#include "trireme/kernels/norm.hpp"
#include "backends.hpp"

#include "reduce_rows.hpp"
#include "rows_norm.hpp"

namespace trireme::kernels {

void cpu::NormForward(const device::Stream& stream, NormKind kind, const Matrix& x,
                      const Matrix& weight, const Matrix& bias, double epsilon,
                      const Matrix& y, const Matrix& statistics) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.columns;
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < x.rows; ++row) {
      const T* from = x.As<T>() + row * x.stride;
      const T mean = kind == NormKind::kLayerNorm
                         ? static_cast<T>(rows::Sum(from, n) / static_cast<double>(n))
                         : T(0);
      const T rstd = rows::ReciprocalDeviation(from, n, mean, epsilon);
      statistics.As<T>()[2 * row] = mean;
      statistics.As<T>()[2 * row + 1] = rstd;
      rows::Normalize(from, mean, rstd, weight.As<T>(), bias.As<T>(), y.As<T>() + row * y.stride,
                      n);
    }
  });
}

void cpu::NormBackwardInput(const device::Stream& stream, NormKind kind, const Matrix& dy,
                            const Matrix& x, const Matrix& weight,
                            const Matrix& statistics, const Matrix& dx,
                            bool accumulate) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < x.rows; ++row) {
      rows::NormGradient(dy.As<T>() + row * dy.stride, x.As<T>() + row * x.stride, weight.As<T>(),
                         statistics.As<T>()[2 * row], statistics.As<T>()[2 * row + 1],
                         kind == NormKind::kLayerNorm, accumulate, dx.As<T>() + row * dx.stride,
                         x.columns);
    }
  });
}

void cpu::NormBackwardWeight(const device::Stream& stream, const Matrix& dy,
                             const Matrix& x, const Matrix& statistics,
                             const Matrix& dweight, const Matrix& dbias,
                             const Matrix& scratch) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.columns;
    const int blocks = ReduceRows<T>(
        stream, x.rows, 2 * n, scratch, [&](std::int64_t begin, std::int64_t end, T* partial) {
          for (std::int64_t row = begin; row < end; ++row) {
            const T* of_row = statistics.As<T>() + 2 * row;
            rows::NormWeightTerm(dy.As<T>() + row * dy.stride, x.As<T>() + row * x.stride,
                                 of_row[0], of_row[1], partial, partial + n, n);
          }
        });
    for (int block = 0; block < blocks; ++block) {
      const T* partial = scratch.As<T>() + block * 2 * n;
      rows::Axpy(T(1), partial, dweight.As<T>(), n);
      if (!dbias.Empty()) rows::Axpy(T(1), partial + n, dbias.As<T>(), n);
    }
  });
}

void cpu::ColumnSum(const device::Stream& stream, const Matrix& x,
                    const Matrix& sums, const Matrix& scratch) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.columns;
    const int blocks = ReduceRows<T>(
        stream, x.rows, n, scratch, [&](std::int64_t begin, std::int64_t end, T* partial) {
          rows::AddRows(x.As<T>() + begin * x.stride, x.stride, end - begin, partial, n);
        });
    for (int block = 0; block < blocks; ++block) {
      rows::Axpy(T(1), scratch.As<T>() + block * n, sums.As<T>(), n);
    }
  });
}

}  // namespace trireme::kernels
