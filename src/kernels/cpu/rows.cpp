// Vectorised loops on one row. Sums are added up in blocks, so that long rows lose no precision.
#include "rows.hpp"

#include <cstring>
#include <type_traits>

#include "philox_lanes.hpp"

namespace trireme::kernels::rows {

namespace {

// Lanes of a sum: 32 bytes, which every instruction set holds in one or two registers, so that sums
// have the same bits with each of them.
template <typename T>
struct LanesOf {
  using Type [[gnu::vector_size(32)]] = T;
  static constexpr std::int64_t kCount = 32 / sizeof(T);
};

// x = from[0], or as many elements as x has lanes.
template <typename T, typename Lanes>
[[gnu::always_inline]] inline void Load(const T* from, Lanes& x) {
  std::memcpy(&x, from, sizeof(x));
}

// Sum over [0, n). add(i, sum) adds element i to a scalar sum, or the elements from i on to the
// lanes of a vector sum. Eight vector sums are independent, since an addition takes several cycles.
template <typename T, typename AddTerm>
[[gnu::always_inline]] inline double BlockedSum(std::int64_t n, AddTerm add) {
  using Lanes = typename LanesOf<T>::Type;
  constexpr std::int64_t kLanes = LanesOf<T>::kCount, kSums = 8;
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSumBlock) {
    const std::int64_t end = std::min(n, begin + kSumBlock);
    Lanes sums[kSums] = {};
    std::int64_t i = begin;
    for (; i + kSums * kLanes <= end; i += kSums * kLanes) {
#pragma GCC unroll 8
      for (std::int64_t k = 0; k < kSums; ++k) add(i + k * kLanes, sums[k]);
    }
    for (; i + kLanes <= end; i += kLanes) add(i, sums[0]);
    const Lanes all =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    T sum = 0;
    for (std::int64_t k = 0; k < kLanes; ++k) sum += all[k];
    for (; i < end; ++i) add(i, sum);
    total += sum;
  }
  return total;
}

}  // namespace

template <typename T>
double Sum(const T* x, std::int64_t n) {
  return BlockedSum<T>(n, [x](std::int64_t i, auto& sum) {
    std::remove_reference_t<decltype(sum)> a;
    Load(x + i, a);
    sum += a;
  });
}
template double Sum(const float* x, std::int64_t n);
template double Sum(const double* x, std::int64_t n);

template <typename T>
double SquaredDeviation(const T* x, std::int64_t n, T mean) {
  return BlockedSum<T>(n, [x, mean](std::int64_t i, auto& sum) {
    std::remove_reference_t<decltype(sum)> a;
    Load(x + i, a);
    a -= mean;
    sum += a * a;
  });
}
template double SquaredDeviation(const float* x, std::int64_t n, float mean);
template double SquaredDeviation(const double* x, std::int64_t n, double mean);

void PhiloxLanes(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                 std::uint32_t c3, std::int64_t n, std::uint16_t* lanes) {
  static const PhiloxLanesFunction fill = UsablePhiloxLanes()[0].fill;
  fill({key[0], key[1], c0, c1, c2, c3}, n, lanes);
}

// Overloads for fp32.

TRIREME_CLONES float Max(const float* x, std::int64_t n) { return Max<float>(x, n); }
TRIREME_CLONES double ExpSum(float* x, std::int64_t n, float scale, float shift) {
  return ExpSum<float>(x, n, scale, shift);
}
TRIREME_CLONES void Affine(const float* x, float a, float b, float* y, std::int64_t n) {
  Affine<float>(x, a, b, y, n);
}
TRIREME_CLONES void Axpy(float a, const float* x, float* y, std::int64_t n) {
  Axpy<float>(a, x, y, n);
}
TRIREME_CLONES void AddRows(const float* x, std::int64_t stride, std::int64_t count, float* sum,
                            std::int64_t n) {
  AddRows<float>(x, stride, count, sum, n);
}
TRIREME_CLONES void BiasRelu(float* pre, const float* bias, float* out, std::int64_t n) {
  BiasRelu<float>(pre, bias, out, n);
}
TRIREME_CLONES void BiasGelu(float* pre, const float* bias, float* out, std::int64_t n) {
  BiasGelu<float>(pre, bias, out, n);
}
TRIREME_CLONES void GeluGradient(const float* pre, const float* dout, float* d, std::int64_t n) {
  GeluGradient<float>(pre, dout, d, n);
}
TRIREME_CLONES void Swiglu(const float* gate, const float* up, float* out, std::int64_t n) {
  Swiglu<float>(gate, up, out, n);
}
TRIREME_CLONES void SwigluGradient(const float* gate, const float* up, const float* dout,
                                   float* dgate, float* dup, std::int64_t n) {
  SwigluGradient<float>(gate, up, dout, dgate, dup, n);
}
TRIREME_CLONES void Mask(const float* x, const std::uint16_t* lanes, std::uint32_t threshold,
                         float scale, float* y, std::int64_t n) {
  Mask<float>(x, lanes, threshold, scale, y, n);
}
TRIREME_CLONES void Normalize(const float* x, float mean, float rstd, const float* weight,
                              const float* bias, float* y, std::int64_t n) {
  Normalize<float>(x, mean, rstd, weight, bias, y, n);
}
TRIREME_CLONES void NormWeightTerm(const float* dy, const float* x, float mean, float rstd,
                                   float* dweight, float* dbias, std::int64_t n) {
  NormWeightTerm<float>(dy, x, mean, rstd, dweight, dbias, n);
}
TRIREME_CLONES void ResidualSum(const float* residual, const float* branch, const float* bias,
                                const RowLanes& lanes, float* sum, std::int64_t n) {
  ResidualSum<float>(residual, branch, bias, lanes, sum, n);
}
TRIREME_CLONES void NormBackward(const NormBackwardRow<float>& row) { NormBackward<float>(row); }

}  // namespace trireme::kernels::rows
