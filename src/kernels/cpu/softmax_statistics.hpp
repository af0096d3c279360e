// Statistics of a row of logits, from slices of the vocabulary to the whole row.
#ifndef TRIREME_SRC_KERNELS_CPU_SOFTMAX_STATISTICS_HPP_
#define TRIREME_SRC_KERNELS_CPU_SOFTMAX_STATISTICS_HPP_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "trireme/kernels/cross_entropy.hpp"

namespace trireme::kernels {

struct Statistics {
  double top = 0;     // largest logit
  double sum = 0;     // of exp(logit - top)
  double picked = 0;  // the target's logit, 0 if another slice has it
  double total = 0;   // sum of logits

  double LogSum() const { return top + std::log(sum); }
  // Not finite if a logit is not: the total includes all of them.
  double Loss(double smoothing, std::int64_t vocabulary) const {
    return LogSum() - (1 - smoothing) * picked -
           smoothing * (total / static_cast<double>(vocabulary));
  }
};

inline void Store(const Statistics& s, double* out) {
  out[0] = s.top;
  out[1] = s.sum;
  out[2] = s.picked;
  out[3] = s.total;
}

// Statistics of the whole row, from those of its parts: [parts, rows, kSoftmaxStatistics]. NaN gets
// past the maximum, but not past the sums.
inline Statistics Combine(const double* statistics, std::int64_t rows, std::int64_t row,
                          int parts) {
  const auto part = [&](int p) { return statistics + (p * rows + row) * kSoftmaxStatistics; };
  Statistics whole{part(0)[0], 0, 0, 0};
  for (int p = 1; p < parts; ++p) whole.top = std::max(whole.top, part(p)[0]);
  for (int p = 0; p < parts; ++p) {
    whole.sum += part(p)[1] * std::exp(part(p)[0] - whole.top);
    whole.picked += part(p)[2];
    whole.total += part(p)[3];
  }
  return whole;
}

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_SOFTMAX_STATISTICS_HPP_
