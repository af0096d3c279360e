// The divisors nearest to a size of an axis or group that does not divide the whole, for messages.
#ifndef TRIREME_SRC_COMM_NEAREST_DIVISORS_HPP_
#define TRIREME_SRC_COMM_NEAREST_DIVISORS_HPP_

#include <cstdint>
#include <vector>

namespace trireme::comm {

// Up to two divisors of `whole` accepted by `fits`: the nearest below and the nearest above `near`.
template <typename Fits>
std::vector<std::int64_t> NearestDivisors(std::int64_t whole, std::int64_t near, Fits fits) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t divisor = 1; divisor <= whole; ++divisor) {
    if (whole % divisor != 0 || !fits(divisor)) continue;
    if (divisor < near) below = divisor;
    if (divisor > near && above == 0) above = divisor;
  }
  std::vector<std::int64_t> result;
  if (below > 0) result.push_back(below);
  if (above > 0) result.push_back(above);
  return result;
}

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_NEAREST_DIVISORS_HPP_
