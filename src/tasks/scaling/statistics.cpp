// Statistics: Student's t by its integral, means and ratios.
#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <numeric>

namespace trireme::tasks {

namespace {

constexpr int kPieces = 1000;    // of Simpson's rule, even: errors below 1e-9
constexpr int kBisections = 60;  // to the last bit

// Integral of cos^(degrees - 1) from 0 to `end`. With t = sqrt(degrees) tan(angle) it is the
// density of Student's t, but for a factor.
double Angles(double degrees, double end) {
  const double step = end / kPieces;
  double sum = 1 + std::pow(std::cos(end), degrees - 1);
  for (int i = 1; i < kPieces; ++i) {
    sum += (i % 2 == 1 ? 4 : 2) * std::pow(std::cos(i * step), degrees - 1);
  }
  return sum * step / 3;
}

double LogRatio(double numerator, double denominator) { return std::log(numerator / denominator); }

}  // namespace

double MeanOf(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double DeviationOf(std::span<const double> values) {
  const double mean = MeanOf(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double StudentQuantile(double degrees) {
  // Half of the whole integral (a beta function), of which kConfidence is wanted.
  const double half = std::sqrt(std::numbers::pi) / 2 *
                      std::exp(std::lgamma(degrees / 2) - std::lgamma((degrees + 1) / 2));
  double low = 0, high = std::numbers::pi / 2;
  for (int i = 0; i < kBisections; ++i) {
    const double middle = (low + high) / 2;
    (Angles(degrees, middle) < kConfidence * half ? low : high) = middle;
  }
  return std::sqrt(degrees) * std::tan((low + high) / 2);
}

std::optional<Interval> IntervalOfMean(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  const auto count = static_cast<double>(values.size());
  const double half = StudentQuantile(count - 1) * DeviationOf(values) / std::sqrt(count);
  const double mean = MeanOf(values);
  return Interval{mean - half, mean + half};
}

std::optional<Interval> IntervalOfRatio(double ratio, std::span<const double> numerators,
                                        std::span<const double> denominators) {
  std::vector<double> logarithms(std::min(numerators.size(), denominators.size()));
  for (std::size_t i = 0; i < logarithms.size(); ++i) {
    logarithms[i] = LogRatio(numerators[i], denominators[i]);
  }
  const std::optional<Interval> spread = IntervalOfMean(logarithms);
  if (!spread) return std::nullopt;
  const double factor = std::exp((spread->high - spread->low) / 2);
  return Interval{ratio / factor, ratio * factor};
}

double KarpFlatt(double speedup, double processors) {
  return (1 / speedup - 1 / processors) / (1 - 1 / processors);
}

}  // namespace trireme::tasks
