// cross_entropy: overwrites losses, and with `gradient` the logits. On slices: SoftmaxStatistics
// overwrites statistics and logits, CrossEntropySlice losses, and with `gradient` the logits.
#include "trireme/kernels/cross_entropy.hpp"

#include <algorithm>
#include <cmath>

#include "backends.hpp"
#include "rows.hpp"
#include "softmax_statistics.hpp"

namespace trireme::kernels {

namespace {

// From exp(logit - largest) of [first, first + n) to p - (1 - e) onehot - e / V; `factor` makes p.
template <typename T>
void RowGradient(T* logits, std::int64_t n, std::int64_t at, double factor, double smoothing,
                 std::int64_t vocabulary) {
  const double uniform = smoothing / static_cast<double>(vocabulary);
  rows::Affine(logits, static_cast<T>(factor), static_cast<T>(-uniform), logits, n);
  if (at >= 0 && at < n) logits[at] -= static_cast<T>(1 - smoothing);
}

// Loss of one row; with `gradient`, logits become p - (1 - e) onehot - e / V.
template <typename T>
double RowLoss(T* logits, std::int64_t n, std::int32_t target, double smoothing, bool gradient) {
  if (target < 0) {
    if (gradient) std::fill_n(logits, n, T(0));
    return 0;
  }
  const T picked = logits[target];
  const double mean = smoothing > 0 ? rows::Sum(logits, n) / static_cast<double>(n) : 0;
  const T top = rows::Max(logits, n);
  const double sum = rows::ExpSum(logits, n, T(1), top);
  const double log_sum = static_cast<double>(top) + std::log(sum);
  if (gradient) RowGradient(logits, n, target, 1 / sum, smoothing, n);
  return log_sum - (1 - smoothing) * static_cast<double>(picked) - smoothing * mean;
}

template <typename T>
Statistics RowStatistics(T* logits, std::int64_t n, std::int64_t at) {
  Statistics s;
  if (at >= 0 && at < n) s.picked = static_cast<double>(logits[at]);
  s.total = rows::Sum(logits, n);
  const T top = rows::Max(logits, n);
  s.top = static_cast<double>(top);
  s.sum = rows::ExpSum(logits, n, T(1), top);
  return s;
}

}  // namespace

void cpu::CrossEntropy(const device::Stream& stream, const Matrix& logits,
                       const std::int32_t* targets, double smoothing, bool gradient,
                       double* losses) {
  DispatchDtype(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < logits.rows; ++row) {
      losses[row] = RowLoss(logits.As<T>() + row * logits.stride, logits.columns, targets[row],
                            smoothing, gradient);
    }
  });
}

void cpu::SoftmaxStatistics(const device::Stream& stream, const Matrix& logits,
                            const std::int32_t* targets, std::int32_t first, double* statistics) {
  DispatchDtype(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < logits.rows; ++row) {
      Statistics s;  // of a masked row: finite, not used
      if (targets[row] >= 0) {
        s = RowStatistics(logits.As<T>() + row * logits.stride, logits.columns,
                          targets[row] - first);
      }
      Store(s, statistics + row * kSoftmaxStatistics);
    }
  });
}

void cpu::CrossEntropySlice(const device::Stream& stream, const Matrix& logits,
                            const std::int32_t* targets, std::int32_t first,
                            std::int64_t vocabulary, double smoothing, bool gradient,
                            const double* statistics, int parts, int part, double* losses) {
  DispatchDtype(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < logits.rows; ++row) {
      T* slice = logits.As<T>() + row * logits.stride;
      if (targets[row] < 0) {
        losses[row] = 0;
        if (gradient) std::fill_n(slice, logits.columns, T(0));
        continue;
      }
      const Statistics s = Combine(statistics, logits.rows, row, parts);
      losses[row] = s.Loss(smoothing, vocabulary);
      if (!gradient) continue;
      const double top = statistics[(part * logits.rows + row) * kSoftmaxStatistics];
      RowGradient(slice, logits.columns, targets[row] - first, std::exp(top - s.top) / s.sum,
                  smoothing, vocabulary);
    }
  });
}

}  // namespace trireme::kernels
