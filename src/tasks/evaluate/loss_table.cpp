// LossTable: losses in fixed point, so that no order of adding them changes a bit.
#include "loss_table.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/exact_sum.hpp"

namespace trireme::tasks {

namespace {

constexpr int kHighBits = 10, kBits = 23;  // binary places of the first, and of each more
constexpr std::ptrdiff_t kSumDoubles = std::ptrdiff_t{1} << 20;  // over the ranks at once

}  // namespace

void LossTable::Add(std::int64_t row, double loss) {
  double rest = std::ldexp(loss, kHighBits);
  const double high = std::floor(rest);
  rest = std::ldexp(rest - high, kBits);
  const double middle = std::floor(rest);
  At(row, kHigh) += high;
  At(row, kMiddle) += middle;
  At(row, kLow) += std::nearbyint(std::ldexp(rest - middle, kBits));
  At(row, kTargets) += 1;
}

void LossTable::Sum(const comm::Communicator& world) {
  std::vector<double> piece;
  for (auto at = sums_.begin(); at != sums_.end();) {
    const auto end = at + std::min(kSumDoubles, sums_.end() - at);
    piece.assign(at, end);
    world.Sum(piece);
    at = std::copy(piece.begin(), piece.end(), at);
  }
}

double LossTable::Nats(std::int64_t row) const {
  ExactSum sum;
  sum.Add(std::ldexp(Of(row, kHigh), -kHighBits));
  sum.Add(std::ldexp(Of(row, kMiddle), -kHighBits - kBits));
  sum.Add(std::ldexp(Of(row, kLow), -kHighBits - 2 * kBits));
  return sum.Value();
}

}  // namespace trireme::tasks
