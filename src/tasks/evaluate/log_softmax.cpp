// Passes over the logits of a vocabulary, written so that they vectorise.
#include "trireme/tasks/evaluate.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

namespace trireme::tasks {

namespace {

// exp(x) for x <= 0, with relative error below 3e-16; exp(-708) for x < -708. Vectorises: x = n ln
// 2 + r, exp(r) by its series up to r^13, and n is added to the exponent's bits.
[[gnu::always_inline]] inline double ExpOfNegative(double x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  constexpr double kHigh = 6.93147180369123816490e-01, kLow = 1.90821492927058770002e-10;  // ln 2
  x = x < -708 ? -708 : x;
  const double shifted = x * std::numbers::log2e + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kHigh) - n * kLow;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r * r + r + 1;
  return p *
         std::bit_cast<double>((std::bit_cast<std::int64_t>(shifted) << 52) + 0x3FF0000000000000);
}

}  // namespace

// Uses comparisons because std::min returns references, which do not vectorise.
Extremes ExtremesOf(std::span<const double> values) {
  double least = values[0], most = values[0];
#pragma omp simd reduction(min : least) reduction(max : most)
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  return {least, most};
}

double Weigh(std::span<const double> logits, double top, double temperature,
             std::vector<double>& weights) {
  weights.resize(logits.size());
  double* const to = weights.data();
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < logits.size(); ++i) {
    to[i] = ExpOfNegative((logits[i] - top) / temperature);
    sum += to[i];
  }
  return sum;
}

bool AllFinite(std::span<const double> logits) {
  std::int64_t bad = 0;
#pragma omp simd reduction(+ : bad)
  for (std::size_t i = 0; i < logits.size(); ++i) {
    bad += std::abs(logits[i]) <= std::numeric_limits<double>::max() ? 0 : 1;
  }
  return bad == 0;
}

double LogProbability(std::span<const double> logits, std::int32_t token) {
  const double top = ExtremesOf(logits).most;
  std::vector<double> weights;
  return logits[static_cast<std::size_t>(token)] - top - std::log(Weigh(logits, top, 1, weights));
}

double LogSumOfExponentials(std::span<const double> logits) {
  const double top = ExtremesOf(logits).most;
  std::vector<double> weights;
  return top + std::log(Weigh(logits, top, 1, weights));
}

}  // namespace trireme::tasks
