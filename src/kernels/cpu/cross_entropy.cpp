// cross_entropy: overwrites losses, and with `gradient` the logits.
#include "trireme/kernels/cross_entropy.hpp"

#include <algorithm>
#include <cmath>

#include "rows.hpp"

namespace trireme::kernels {

namespace {

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
  if (gradient) {
    const double uniform = smoothing / static_cast<double>(n);
    rows::Affine(logits, static_cast<T>(1 / sum), static_cast<T>(-uniform), logits, n);
    logits[target] -= static_cast<T>(1 - smoothing);
  }
  return log_sum - (1 - smoothing) * static_cast<double>(picked) - smoothing * mean;
}

}  // namespace

void CrossEntropy(const device::Stream& stream, const tensor::Matrix& logits,
                  const std::int32_t* targets, double smoothing, bool gradient, double* losses) {
  DispatchDtype(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < logits.rows; ++row) {
      losses[row] = RowLoss(logits.As<T>() + row * logits.stride, logits.columns, targets[row],
                            smoothing, gradient);
    }
  });
}

}  // namespace trireme::kernels
