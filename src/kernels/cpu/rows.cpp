// Sums over one row, in blocks, so that long rows (the vocabulary) lose no precision.
#include "rows.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "clones.hpp"
#include "fast_math.hpp"

namespace trireme::kernels::rows {

namespace {

template <typename T>
[[gnu::always_inline]] inline T MaxOf(const T* x, std::int64_t n) {
  T top = x[0];
#pragma omp simd reduction(max : top)
  for (std::int64_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

template <typename T>
[[gnu::always_inline]] inline double ExpSumOf(T* x, std::int64_t n, T scale, T shift) {
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSumBlock) {
    const std::int64_t end = std::min(n, begin + kSumBlock);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = begin; i < end; ++i) {
      x[i] = Exp(x[i] * scale - shift);
      sum += x[i];
    }
    total += sum;
  }
  return total;
}

// Lanes of a sum: 32 bytes, which every instruction set has in one register or two, so that sums
// have the same bits with all of them.
template <typename T>
struct LanesOf {
  using Type [[gnu::vector_size(32)]] = T;
  static constexpr std::int64_t kCount = 32 / sizeof(T);
};

// x = from[0], or as many as x has lanes.
template <typename T, typename Lanes>
[[gnu::always_inline]] inline void Load(const T* from, Lanes& x) {
  std::memcpy(&x, from, sizeof(x));
}

// total of [0, n): add(i, sum) adds element i to a sum, or that element and the next ones to its
// lanes. Eight sums of lanes side by side, since an addition takes several cycles.
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

template <typename T>
[[gnu::always_inline]] inline double SumOf(const T* x, std::int64_t n) {
  return BlockedSum<T>(n, [x](std::int64_t i, auto& sum) {
    std::remove_reference_t<decltype(sum)> a;
    Load(x + i, a);
    sum += a;
  });
}

template <typename T>
[[gnu::always_inline]] inline double SquaredDeviationOf(const T* x, std::int64_t n, T mean) {
  return BlockedSum<T>(n, [x, mean](std::int64_t i, auto& sum) {
    std::remove_reference_t<decltype(sum)> a;
    Load(x + i, a);
    a -= mean;
    sum += a * a;
  });
}

template <typename T>
[[gnu::always_inline]] inline double DotOf(const T* x, const T* y, std::int64_t n) {
  return BlockedSum<T>(n, [x, y](std::int64_t i, auto& sum) {
    std::remove_reference_t<decltype(sum)> a, b;
    Load(x + i, a);
    Load(y + i, b);
    sum += a * b;
  });
}

template <typename T>
[[gnu::always_inline]] inline void AffineOf(const T* x, T a, T b, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = a * x[i] + b;
}

template <typename T>
[[gnu::always_inline]] inline void AxpyOf(T a, const T* x, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

template <typename T>
[[gnu::always_inline]] inline void AddRowsOf(const T* x, std::int64_t stride, std::int64_t count,
                                             T* sum, std::int64_t n) {
  // Four at a time, so that sums are not stored and loaded again after each.
  for (; count >= 4; count -= 4, x += 4 * stride) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      sum[i] = sum[i] + x[i] + x[i + stride] + x[i + 2 * stride] + x[i + 3 * stride];
    }
  }
  for (; count > 0; --count, x += stride) AxpyOf(T(1), x, sum, n);
}

}  // namespace

TRIREME_CLONES float Max(const float* x, std::int64_t n) { return MaxOf(x, n); }
double Max(const double* x, std::int64_t n) { return MaxOf(x, n); }

TRIREME_CLONES double ExpSum(float* x, std::int64_t n, float scale, float shift) {
  return ExpSumOf(x, n, scale, shift);
}
double ExpSum(double* x, std::int64_t n, double scale, double shift) {
  return ExpSumOf(x, n, scale, shift);
}

double Sum(const float* x, std::int64_t n) { return SumOf(x, n); }
double Sum(const double* x, std::int64_t n) { return SumOf(x, n); }

double SquaredDeviation(const float* x, std::int64_t n, float mean) {
  return SquaredDeviationOf(x, n, mean);
}
double SquaredDeviation(const double* x, std::int64_t n, double mean) {
  return SquaredDeviationOf(x, n, mean);
}

double Dot(const float* x, const float* y, std::int64_t n) { return DotOf(x, y, n); }
double Dot(const double* x, const double* y, std::int64_t n) { return DotOf(x, y, n); }

TRIREME_CLONES void Affine(const float* x, float a, float b, float* y, std::int64_t n) {
  AffineOf(x, a, b, y, n);
}
void Affine(const double* x, double a, double b, double* y, std::int64_t n) {
  AffineOf(x, a, b, y, n);
}

TRIREME_CLONES void Axpy(float a, const float* x, float* y, std::int64_t n) { AxpyOf(a, x, y, n); }
void Axpy(double a, const double* x, double* y, std::int64_t n) { AxpyOf(a, x, y, n); }

TRIREME_CLONES void AddRows(const float* x, std::int64_t stride, std::int64_t count, float* sum,
                            std::int64_t n) {
  AddRowsOf(x, stride, count, sum, n);
}
void AddRows(const double* x, std::int64_t stride, std::int64_t count, double* sum,
             std::int64_t n) {
  AddRowsOf(x, stride, count, sum, n);
}

}  // namespace trireme::kernels::rows
