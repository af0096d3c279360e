// Numerical rule 4's measure of how far two sets of tensors are apart (doc/reference/numerics.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace trireme::test {

inline double Norm(std::span<const double> values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

struct LargestDifference {
  double relative = 0;     // |t - t'| / max(|t|, rms(all) sqrt(n)); NaN when a difference is
  std::size_t tensor = 0;  // the worst one's place
};

// got, wanted: the same tensors in the same order.
inline LargestDifference RuleFourDifference(const std::vector<std::vector<double>>& got,
                                            const std::vector<std::vector<double>>& wanted) {
  double squares = 0, count = 0;
  for (const std::vector<double>& tensor : wanted) {
    squares += Norm(tensor) * Norm(tensor);
    count += static_cast<double>(tensor.size());
  }
  const double rms = std::sqrt(squares / count);
  LargestDifference worst;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::vector<double> difference = got.at(i);
    for (std::size_t j = 0; j < difference.size(); ++j) difference[j] -= wanted[i].at(j);
    const double scale =
        std::max(Norm(wanted[i]), rms * std::sqrt(static_cast<double>(wanted[i].size())));
    const double relative = Norm(difference) / scale;
    if (std::isnan(relative)) return {relative, i};  // below no tolerance
    if (relative > worst.relative) worst = {relative, i};
  }
  return worst;
}

}  // namespace trireme::test
