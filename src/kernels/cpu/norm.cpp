// Norms and column sums: NormForward overwrites y and statistics; NormBackwardWeight and ColumnSum
// accumulate. Sums over rows use fixed blocks of rows, whatever the number of threads.
#include <algorithm>
#include <cstdint>

#include "backends.hpp"
#include "rows.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::kernels {

// Sums over rows in kReductionBlocks fixed blocks, with the same bits for any number of threads.

// Calls add(begin, end, partial) for the rows [begin, end) of every block; partial: the block's row
// of scratch, `width` elements, zeroed (width may be 0 if nothing is summed). Returns the number of
// blocks; the caller adds up the partials in order.
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

namespace {

// The norm of one row; also writes its mean and rstd.
template <typename T>
void NormRow(NormKind kind, const T* x, std::int64_t n, const Matrix& weight, const Matrix& bias,
             double epsilon, T* y, T* statistics) {
  const T mean = kind == NormKind::kLayerNorm
                     ? static_cast<T>(rows::Sum(x, n) / static_cast<double>(n))
                     : T(0);
  const T rstd = rows::ReciprocalDeviation(x, n, mean, epsilon);
  statistics[0] = mean;
  statistics[1] = rstd;
  rows::Normalize(x, mean, rstd, weight.As<T>(), bias.As<T>(), y, n);
}

}  // namespace

void cpu::NormForward(const device::Stream& stream, NormKind kind, const Matrix& x,
                      const Matrix& weight, const Matrix& bias, double epsilon, const Matrix& y,
                      const Matrix& statistics) {
  EachRow(stream, x.dtype, x.rows, [&](auto zero, std::int64_t row) {
    using T = decltype(zero);
    NormRow<T>(kind, RowOf<T>(x, row), x.columns, weight, bias, epsilon, RowOf<T>(y, row),
               statistics.As<T>() + 2 * row);
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
            rows::NormWeightTerm(RowOf<T>(dy, row), RowOf<T>(x, row), of_row[0], of_row[1], partial,
                                 partial + n, n);
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

// Norms fused with the operations around them: ResidualNormForward overwrites sum, y and
// statistics; NormBackward overwrites dx and dbranch and adds to dweight and dbias.

void cpu::ResidualNormForward(const device::Stream& stream, NormKind kind, const Matrix& residual,
                              const Matrix& branch, const Matrix& bias, const Dropout& dropout,
                              const Matrix& sum, const Matrix& weight, const Matrix& norm_bias,
                              double epsilon, const Matrix& y, const Matrix& statistics) {
  EachMaskedRow(stream, sum, dropout, [&](auto zero, std::int64_t row, const RowMask& mask) {
    using T = decltype(zero);
    const std::int64_t n = sum.columns;
    T* s = RowOf<T>(sum, row);
    rows::ResidualSum(RowOf<T>(residual, row), RowOf<T>(branch, row), bias.As<T>(),
                      mask.Lanes(row, n), s, n);
    // The same bits as NormForward, so that recomputation can run this part alone.
    NormRow<T>(kind, s, n, weight, norm_bias, epsilon, RowOf<T>(y, row),
               statistics.As<T>() + 2 * row);
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
