// Statistics of a scaling study: intervals of confidence and the serial fraction. Pure.
#ifndef TRIREME_SRC_TASKS_SCALING_STATISTICS_HPP_
#define TRIREME_SRC_TASKS_SCALING_STATISTICS_HPP_

#include <optional>
#include <span>
#include <vector>

namespace trireme::tasks {

// Bounds of a two-sided interval of kConfidence.
inline constexpr double kConfidence = 0.95;
struct Interval {
  double low = 0, high = 0;
};

double MeanOf(std::span<const double> values);       // of at least one
double MedianOf(std::vector<double> values);         // likewise; of an even number, between the two
double DeviationOf(std::span<const double> values);  // of a sample, over n - 1; of at least two

// Quantile (1 + kConfidence) / 2 of Student's t distribution (Student 1908); degrees >= 1.
double StudentQuantile(double degrees);

// Of the mean of independent values: mean -+ t s / sqrt(n). None for fewer than two.
std::optional<Interval> IntervalOfMean(std::span<const double> values);

// Of a ratio whose numerator and denominator were measured in pairs, one after the other, so that
// what slows a whole pair cancels: `ratio` times exp(-+ t s / sqrt(n)), s the deviation of the
// pairs' logarithmic ratios. Values are positive. None for fewer than two pairs.
std::optional<Interval> IntervalOfRatio(double ratio, std::span<const double> numerators,
                                        std::span<const double> denominators);

// Experimentally determined serial fraction (Karp and Flatt 1990):
// (1 / speed-up - 1 / processors) / (1 - 1 / processors); processors > 1. Negative beyond the ideal
// speed-up.
double KarpFlatt(double speedup, double processors);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_STATISTICS_HPP_
