// norm: NormForward overwrites y and statistics; NormBackwardInput overwrites dx or accumulates
// into it; NormBackwardWeight accumulates, in kReductionBlocks blocks of rows whatever the number
// of threads.
#include <algorithm>
#include <cstdint>

#include "backends.hpp"
#include "rows.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::kernels {

// Sums over rows in kReductionBlocks fixed blocks of rows: the same bits for any number of threads.

// Runs add(begin, end, partial) for the rows [begin, end) of every block, partial being the block's
// zeroed row of scratch; returns the number of blocks. The caller adds the partials up in order.
// `width` may be 0, for rows that leave no sum.
template <typename T, typename Add>
int ReduceRows(const device::Stream& stream, std::int64_t row_count, std::int64_t width,
               const Matrix& scratch, Add add) {
  const int blocks = static_cast<int>(std::clamp<std::int64_t>(row_count, 1, kReductionBlocks));
#pragma omp parallel for num_threads(stream.threads) schedule(static)
  for (int block = 0; block < blocks; ++block) {
    T* partial = scratch.As<T>() + block * width;
    std::fill(partial, partial + width, T(0));
    add(row_count * block / blocks, row_count * (block + 1) / blocks, partial);
  }
  return blocks;
}

void cpu::NormForward(const device::Stream& stream, NormKind kind, const Matrix& x,
                      const Matrix& weight, const Matrix& bias, double epsilon, const Matrix& y,
                      const Matrix& statistics) {
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
                            const Matrix& x, const Matrix& weight, const Matrix& statistics,
                            const Matrix& dx, bool accumulate) {
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

void cpu::NormBackwardWeight(const device::Stream& stream, const Matrix& dy, const Matrix& x,
                             const Matrix& statistics, const Matrix& dweight, const Matrix& dbias,
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

void cpu::ColumnSum(const device::Stream& stream, const Matrix& x, const Matrix& sums,
                    const Matrix& scratch) {
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

// Norms in one pass with the operations around them: ResidualNormForward overwrites sum, y and
// statistics; NormBackward overwrites dx and dbranch and accumulates into dweight and dbias.

namespace {

template <typename T>
T* RowOf(const Matrix& x, std::int64_t row) {
  return x.Empty() ? nullptr : x.As<T>() + row * x.stride;
}

}  // namespace

void cpu::ResidualNormForward(const device::Stream& stream, NormKind kind, const Matrix& residual,
                              const Matrix& branch, const Matrix& bias, const Dropout& dropout,
                              const Matrix& sum, const Matrix& weight, const Matrix& norm_bias,
                              double epsilon, const Matrix& y, const Matrix& statistics) {
  DispatchDtype(sum.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = sum.columns;
#pragma omp parallel num_threads(stream.threads)
    {
      RowMask mask(dropout, n);
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < sum.rows; ++row) {
        T* s = RowOf<T>(sum, row);
        rows::ResidualSum(RowOf<T>(residual, row), RowOf<T>(branch, row), bias.As<T>(),
                          mask.Lanes(row, n), s, n);
        // From here on as NormForward, to the bit: recomputation may do that part alone.
        const T mean = kind == NormKind::kLayerNorm
                           ? static_cast<T>(rows::Sum(s, n) / static_cast<double>(n))
                           : T(0);
        const T rstd = rows::ReciprocalDeviation(s, n, mean, epsilon);
        statistics.As<T>()[2 * row] = mean;
        statistics.As<T>()[2 * row + 1] = rstd;
        rows::Normalize(s, mean, rstd, weight.As<T>(), norm_bias.As<T>(), RowOf<T>(y, row), n);
      }
    }
  });
}

void cpu::NormBackward(const device::Stream& stream, const NormBackwardPass& pass) {
  DispatchDtype(pass.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = pass.x.columns;
    const bool weights = !pass.dweight.Empty() || !pass.dbias.Empty();
    const bool masked = !pass.dbranch.Empty();
    const int blocks =
        ReduceRows<T>(stream, pass.x.rows, weights ? 2 * n : 0, pass.scratch,
                      [&](std::int64_t begin, std::int64_t end, T* partial) {
                        const RowMask mask(pass.dropout, n);
                        for (std::int64_t row = begin; row < end; ++row) {
                          const T* statistics = pass.statistics.As<T>() + 2 * row;
                          rows::NormBackward(rows::NormBackwardRow<T>{
                              .dy = RowOf<T>(pass.dy, row),
                              .more = RowOf<T>(pass.more, row),
                              .x = RowOf<T>(pass.x, row),
                              .weight = pass.weight.As<T>(),
                              .mean = statistics[0],
                              .rstd = statistics[1],
                              .centred = pass.kind == NormKind::kLayerNorm,
                              .residual = RowOf<T>(pass.residual, row),
                              .lanes = masked ? mask.Lanes(row, n) : rows::RowLanes{},
                              .dx = RowOf<T>(pass.dx, row),
                              .dbranch = RowOf<T>(pass.dbranch, row),
                              .dweight = weights ? partial : nullptr,
                              .dbias = weights ? partial + n : nullptr,
                              .n = n});
                        }
                      });
    for (int block = 0; weights && block < blocks; ++block) {
      const T* partial = pass.scratch.As<T>() + block * 2 * n;
      if (!pass.dweight.Empty()) rows::Axpy(T(1), partial, pass.dweight.As<T>(), n);
      if (!pass.dbias.Empty()) rows::Axpy(T(1), partial + n, pass.dbias.As<T>(), n);
    }
  });
}

}  // namespace trireme::kernels
