// Norms in one pass with the operations around them: ResidualNormForward overwrites sum, y and
// statistics; NormBackward overwrites dx and dbranch and accumulates into dweight and dbias.
#include <cmath>

#include "backends.hpp"
#include "reduce_rows.hpp"
#include "row_mask.hpp"
#include "rows_norm.hpp"
#include "trireme/kernels/norm.hpp"

namespace trireme::kernels {

namespace {

template <typename T>
T* RowOf(const Matrix& x, std::int64_t row) {
  return x.Empty() ? nullptr : x.As<T>() + row * x.stride;
}

}  // namespace

void cpu::ResidualNormForward(const device::Stream& stream, NormKind kind,
                              const Matrix& residual, const Matrix& branch,
                              const Matrix& bias, const Dropout& dropout,
                              const Matrix& sum, const Matrix& weight,
                              const Matrix& norm_bias, double epsilon,
                              const Matrix& y, const Matrix& statistics) {
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
