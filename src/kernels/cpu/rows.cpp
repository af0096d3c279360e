// Sums in blocks: long rows (the vocabulary) lose nothing.
#include "rows.hpp"

#include <algorithm>

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

// total of term(i) over [0, n).
template <typename T, typename Term>
[[gnu::always_inline]] inline double BlockedSum(std::int64_t n, Term term) {
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSumBlock) {
    const std::int64_t end = std::min(n, begin + kSumBlock);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = begin; i < end; ++i) sum += term(i);
    total += sum;
  }
  return total;
}

template <typename T>
[[gnu::always_inline]] inline double SumOf(const T* x, std::int64_t n) {
  return BlockedSum<T>(n, [x](std::int64_t i) [[gnu::always_inline]] { return x[i]; });
}

template <typename T>
[[gnu::always_inline]] inline double SquaredDeviationOf(const T* x, std::int64_t n, T mean) {
  return BlockedSum<T>(n, [x, mean](std::int64_t i)
                              [[gnu::always_inline]] { return (x[i] - mean) * (x[i] - mean); });
}

template <typename T>
[[gnu::always_inline]] inline double DotOf(const T* x, const T* y, std::int64_t n) {
  return BlockedSum<T>(n, [x, y](std::int64_t i) [[gnu::always_inline]] { return x[i] * y[i]; });
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

}  // namespace

TRIREME_CLONES float Max(const float* x, std::int64_t n) { return MaxOf(x, n); }
double Max(const double* x, std::int64_t n) { return MaxOf(x, n); }

TRIREME_CLONES double ExpSum(float* x, std::int64_t n, float scale, float shift) {
  return ExpSumOf(x, n, scale, shift);
}
double ExpSum(double* x, std::int64_t n, double scale, double shift) {
  return ExpSumOf(x, n, scale, shift);
}

TRIREME_CLONES double Sum(const float* x, std::int64_t n) { return SumOf(x, n); }
double Sum(const double* x, std::int64_t n) { return SumOf(x, n); }

TRIREME_CLONES double SquaredDeviation(const float* x, std::int64_t n, float mean) {
  return SquaredDeviationOf(x, n, mean);
}
double SquaredDeviation(const double* x, std::int64_t n, double mean) {
  return SquaredDeviationOf(x, n, mean);
}

TRIREME_CLONES double Dot(const float* x, const float* y, std::int64_t n) { return DotOf(x, y, n); }
double Dot(const double* x, const double* y, std::int64_t n) { return DotOf(x, y, n); }

TRIREME_CLONES void Affine(const float* x, float a, float b, float* y, std::int64_t n) {
  AffineOf(x, a, b, y, n);
}
void Affine(const double* x, double a, double b, double* y, std::int64_t n) {
  AffineOf(x, a, b, y, n);
}

TRIREME_CLONES void Axpy(float a, const float* x, float* y, std::int64_t n) { AxpyOf(a, x, y, n); }
void Axpy(double a, const double* x, double* y, std::int64_t n) { AxpyOf(a, x, y, n); }

}  // namespace trireme::kernels::rows
