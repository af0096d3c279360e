// Permute and its inverse: a balanced Feistel network whose round function is Philox.
#include "permutation.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "trireme/base/philox.hpp"

namespace trireme::data {

namespace {

// Four rounds of a random function are a pseudo-random permutation that resists chosen plain and
// cipher texts (Luby and Rackoff, SIAM J. Comput. 17, 1988) for large domains; small ones want
// more.
constexpr std::uint32_t kRounds = 8;

class Feistel {
 public:
  Feistel(std::uint32_t seed, std::int64_t epoch, std::int64_t count)
      : key_(MakeKey(seed, Purpose::kPermutation)), epoch_(static_cast<std::uint64_t>(epoch)) {
    while ((std::uint64_t{1} << (2 * half_bits_)) < static_cast<std::uint64_t>(count)) ++half_bits_;
    mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }

  std::uint64_t Forward(std::uint64_t value) const {
    std::uint64_t left = value >> half_bits_, right = value & mask_;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ Mix(right, round);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  std::uint64_t Backward(std::uint64_t value) const {
    std::uint64_t left = value >> half_bits_, right = value & mask_;
    for (std::uint32_t round = kRounds; round-- > 0;) {
      const std::uint64_t previous = right ^ Mix(left, round);
      right = left;
      left = previous;
    }
    return left << half_bits_ | right;
  }

 private:
  // counter = (half-block, round, epoch low, epoch high)
  std::uint64_t Mix(std::uint64_t half, std::uint32_t round) const {
    const PhiloxCounter counter = {static_cast<std::uint32_t>(half), round,
                                   static_cast<std::uint32_t>(epoch_),
                                   static_cast<std::uint32_t>(epoch_ >> 32)};
    return Philox(counter, key_)[0] & mask_;
  }

  PhiloxKey key_;
  std::uint64_t epoch_;
  int half_bits_ = 1;
  std::uint64_t mask_ = 0;
};

void CheckRange(std::int64_t index, std::int64_t count) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 62;  // half-blocks of 31 bits
  if (count < 1 || count > kLargest || index < 0 || index >= count) {
    throw std::logic_error(fmt::format("Permute: index {} of {}", index, count));
  }
}

}  // namespace

std::int64_t Permute(std::uint32_t seed, std::int64_t epoch, std::int64_t index,
                     std::int64_t count) {
  CheckRange(index, count);
  const Feistel feistel(seed, epoch, count);
  auto value = static_cast<std::uint64_t>(index);
  do value = feistel.Forward(value);
  while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

std::int64_t PermuteBack(std::uint32_t seed, std::int64_t epoch, std::int64_t image,
                         std::int64_t count) {
  CheckRange(image, count);
  const Feistel feistel(seed, epoch, count);
  auto value = static_cast<std::uint64_t>(image);
  do value = feistel.Backward(value);
  while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

}  // namespace trireme::data
