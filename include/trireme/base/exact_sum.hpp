// Exact sums: the same bits in any order, on any number of threads and ranks.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace trireme {

// A sum of doubles without rounding: a fixed-point number that covers the whole range of doubles,
// and the carries of 2^63 terms beyond it (Kulisch and Miranker 1981). Its digits put off their
// carries (Neal 2015, "Fast exact summation using small and large superaccumulators").
class ExactSum {
 public:
  static constexpr std::size_t kDigits = 68;
  // Length of Digits(): the digits, then whether NaN, infinity and -infinity occurred (0 or 1
  // each).
  static constexpr std::size_t kNumbers = kDigits + 3;

  // Adds one term.
  void Add(double x) {
    const auto bits = std::bit_cast<std::uint64_t>(x);
    const std::uint64_t exponent = bits >> 52 & 0x7FF,
                        fraction = bits & ((std::uint64_t{1} << 52) - 1);
    if (exponent == 0x7FF) [[unlikely]] {
      return AddSpecial(x);
    }
    if (++terms_ >= kMostTerms) [[unlikely]] {
      Normalise();
    }
    // x = +-mantissa 2^(position - 1074), over three digits.
    const std::uint64_t normal = exponent != 0 ? 1 : 0;
    const std::uint64_t mantissa = fraction | normal << 52, position = exponent - normal;
    const std::uint64_t shift = position % kBits, above = mantissa >> (kBits - shift);
    const auto sign = static_cast<std::int64_t>(bits) >> 63;  // 0 or -1
    std::int64_t* digit = digits_.data() + position / kBits;
    digit[0] += (static_cast<std::int64_t>(mantissa << shift & kMask) ^ sign) - sign;
    digit[1] += (static_cast<std::int64_t>(above & kMask) ^ sign) - sign;
    digit[2] += (static_cast<std::int64_t>(above >> kBits) ^ sign) - sign;
  }

  // Adds all terms of another sum.
  void Add(const ExactSum& other) {
    for (std::size_t i = 0; i < kDigits; ++i) digits_[i] += other.digits_[i];
    for (std::size_t i = 0; i < specials_.size(); ++i) specials_[i] |= other.specials_[i];
    terms_ += other.terms_;
    if (terms_ >= kMostTerms) Normalise();
  }

  // The sum, rounded once to the nearest double, ties to even; +0 if empty. NaN if a term is NaN or
  // both infinities occur; infinity if one of them occurs or the sum exceeds the largest double.
  double Value() const;

  // The sum as integers of magnitude below 2^32, in doubles. The Digits() of up to 2^20 sums can be
  // added without rounding; FromDigits then makes the sum of all their terms.
  std::array<double, kNumbers> Digits() const;
  static ExactSum FromDigits(std::span<const double> numbers);

 private:
  static constexpr std::uint64_t kBits = 32, kMask = 0xFFFFFFFF;
  // Normalise is called after this many terms, before any digit could overflow.
  static constexpr std::int64_t kMostTerms = std::int64_t{1} << 29;

  void AddSpecial(double x) { specials_[std::isnan(x) ? 0 : x > 0 ? 1 : 2] = true; }
  // Brings all digits into [0, 2^32), except the last, which carries the sign.
  void Normalise();

  std::array<std::int64_t, kDigits> digits_{};  // digit i counts multiples of 2^(32 i - 1074)
  std::int64_t terms_ = 0;          // since Normalise; each adds at most 2^32 - 1 to a digit
  std::array<bool, 3> specials_{};  // NaN, infinity, -infinity seen
};

inline void ExactSum::Normalise() {
  for (std::size_t i = 0; i + 1 < kDigits; ++i) {
    const std::int64_t low = digits_[i] & static_cast<std::int64_t>(kMask);
    digits_[i + 1] += (digits_[i] - low) >> kBits;
    digits_[i] = low;
  }
  terms_ = 1;
}

inline double ExactSum::Value() const {
  const auto [nan, plus, minus] = specials_;
  if (nan || (plus && minus)) return std::numeric_limits<double>::quiet_NaN();
  if (plus || minus) return plus ? HUGE_VAL : -HUGE_VAL;
  ExactSum sum = *this;
  sum.Normalise();
  const bool negative = sum.digits_.back() < 0;
  if (negative) {
    for (std::int64_t& digit : sum.digits_) digit = -digit;
    sum.Normalise();
  }
  std::size_t top = kDigits - 1;
  while (top > 0 && sum.digits_[top] == 0) --top;
  const auto digit = [&sum](std::size_t i) {
    return i < kDigits ? static_cast<std::uint64_t>(sum.digits_[i]) : 0;
  };
  // Bits [from, from + 64) of the sum.
  const auto window = [&digit](std::size_t from) {
    const std::size_t i = from / kBits, shift = from % kBits;
    const std::uint64_t low = digit(i) | digit(i + 1) << kBits;
    return shift == 0 ? low : low >> shift | digit(i + 2) << (2 * kBits - shift);
  };
  constexpr std::size_t kMantissa = 53;
  const std::size_t bits = kBits * top + static_cast<std::size_t>(std::bit_width(digit(top)));
  const std::size_t dropped = bits > kMantissa ? bits - kMantissa : 0;
  std::uint64_t mantissa = window(dropped) & ((std::uint64_t{1} << kMantissa) - 1);
  if (dropped > 0) {
    const std::size_t half = dropped - 1;
    bool more = (digit(half / kBits) & ((std::uint64_t{1} << half % kBits) - 1)) != 0;
    for (std::size_t i = 0; i < half / kBits && !more; ++i) more = digit(i) != 0;
    if ((window(half) & 1) != 0 && (more || (mantissa & 1) != 0)) ++mantissa;
  }
  const double value = std::ldexp(static_cast<double>(mantissa), static_cast<int>(dropped) - 1074);
  return negative ? -value : value;
}

inline std::array<double, ExactSum::kNumbers> ExactSum::Digits() const {
  ExactSum sum = *this;
  sum.Normalise();
  std::array<double, kNumbers> numbers;
  for (std::size_t i = 0; i < kDigits; ++i) numbers[i] = static_cast<double>(sum.digits_[i]);
  for (std::size_t i = 0; i < specials_.size(); ++i) numbers[kDigits + i] = specials_[i] ? 1 : 0;
  return numbers;
}

inline ExactSum ExactSum::FromDigits(std::span<const double> numbers) {
  ExactSum sum;
  for (std::size_t i = 0; i < kDigits; ++i) sum.digits_[i] = static_cast<std::int64_t>(numbers[i]);
  for (std::size_t i = 0; i < 3; ++i) sum.specials_[i] = numbers[kDigits + i] != 0;
  sum.Normalise();
  return sum;
}

}  // namespace trireme
