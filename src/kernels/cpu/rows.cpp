// Vectorised loops on one row. Sums are added up in blocks, so that long rows lose no precision.
#include "rows.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "fast_math.hpp"
#include "philox_lanes.hpp"

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
  // Four rows at a time, so that sums are not stored and loaded again after each row.
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

// Activations on one row, forward and backward.

namespace {

// GELU, tanh form: 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3). Computed as x
// sigmoid(2u), which is equal and does not cancel in the negative tail.
constexpr double kGeluScale = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

template <typename T>
[[gnu::always_inline]] inline void BiasReluOf(T* pre, const T* bias, T* out, std::int64_t n) {
  if (bias != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) pre[i] += bias[i];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = pre[i] < T(0) ? T(0) : pre[i];
}

template <typename T>
[[gnu::always_inline]] inline void BiasGeluOf(T* pre, const T* bias, T* out, std::int64_t n) {
  if (bias != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) pre[i] += bias[i];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = pre[i];
    out[i] = x * Sigmoid(T(2 * kGeluScale) * (x + T(kGeluCubic) * x * x * x));
  }
}

template <typename T>
[[gnu::always_inline]] inline void GeluGradientOf(const T* pre, const T* dout, T* d,
                                                  std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = pre[i];
    const T s = Sigmoid(T(2 * kGeluScale) * (x + T(kGeluCubic) * x * x * x));
    const T slope = T(2 * kGeluScale) * (T(1) + T(3 * kGeluCubic) * x * x);
    d[i] = dout[i] * (s + x * s * (T(1) - s) * slope);
  }
}

template <typename T>
[[gnu::always_inline]] inline void SwigluOf(const T* gate, const T* up, T* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = gate[i] * Sigmoid(gate[i]) * up[i];
}

template <typename T>
[[gnu::always_inline]] inline void SwigluGradientOf(const T* gate, const T* up, const T* dout,
                                                    T* dgate, T* dup, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = gate[i], u = up[i], d = dout[i];
    const T sigmoid = Sigmoid(g);
    dgate[i] = d * u * sigmoid * (T(1) + g * (T(1) - sigmoid));
    dup[i] = d * g * sigmoid;
  }
}

}  // namespace

TRIREME_CLONES void BiasRelu(float* pre, const float* bias, float* out, std::int64_t n) {
  BiasReluOf(pre, bias, out, n);
}
void BiasRelu(double* pre, const double* bias, double* out, std::int64_t n) {
  BiasReluOf(pre, bias, out, n);
}

TRIREME_CLONES void BiasGelu(float* pre, const float* bias, float* out, std::int64_t n) {
  BiasGeluOf(pre, bias, out, n);
}
void BiasGelu(double* pre, const double* bias, double* out, std::int64_t n) {
  BiasGeluOf(pre, bias, out, n);
}

TRIREME_CLONES void GeluGradient(const float* pre, const float* dout, float* d, std::int64_t n) {
  GeluGradientOf(pre, dout, d, n);
}
void GeluGradient(const double* pre, const double* dout, double* d, std::int64_t n) {
  GeluGradientOf(pre, dout, d, n);
}

TRIREME_CLONES void Swiglu(const float* gate, const float* up, float* out, std::int64_t n) {
  SwigluOf(gate, up, out, n);
}
void Swiglu(const double* gate, const double* up, double* out, std::int64_t n) {
  SwigluOf(gate, up, out, n);
}

TRIREME_CLONES void SwigluGradient(const float* gate, const float* up, const float* dout,
                                   float* dgate, float* dup, std::int64_t n) {
  SwigluGradientOf(gate, up, dout, dgate, dup, n);
}
void SwigluGradient(const double* gate, const double* up, const double* dout, double* dgate,
                    double* dup, std::int64_t n) {
  SwigluGradientOf(gate, up, dout, dgate, dup, n);
}

// Philox lanes for one row, and the dropout mask made from them.

namespace {

template <typename T>
[[gnu::always_inline]] inline void MaskOf(const T* x, const std::uint16_t* lanes,
                                          std::uint32_t threshold, T scale, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = lanes[i] >= threshold ? scale * x[i] : T(0);
}

}  // namespace

void PhiloxLanes(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                 std::uint32_t c3, std::int64_t n, std::uint16_t* lanes) {
  static const PhiloxLanesFunction fill = UsablePhiloxLanes()[0].fill;
  fill({key[0], key[1], c0, c1, c2, c3}, n, lanes);
}

TRIREME_CLONES void Mask(const float* x, const std::uint16_t* lanes, std::uint32_t threshold,
                         float scale, float* y, std::int64_t n) {
  MaskOf(x, lanes, threshold, scale, y, n);
}
void Mask(const double* x, const std::uint16_t* lanes, std::uint32_t threshold, double scale,
          double* y, std::int64_t n) {
  MaskOf(x, lanes, threshold, scale, y, n);
}

// Norms on one row. All passes over a row but the first find it in the nearest cache.

namespace {

template <typename T>
[[gnu::always_inline]] inline void NormalizeOf(const T* x, T mean, T rstd, const T* weight,
                                               const T* bias, T* y, std::int64_t n) {
  if (bias != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i];
  }
}

template <typename T>
[[gnu::always_inline]] inline void NormWeightTermOf(const T* dy, const T* x, T mean, T rstd,
                                                    T* dweight, T* dbias, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    dweight[i] += dy[i] * (x[i] - mean) * rstd;
    dbias[i] += dy[i];
  }
}

// These loops are compiled once for every combination of optional operands: a condition in the loop
// would be evaluated for each element.
template <bool kBias, bool kMask, typename T>
[[gnu::always_inline]] inline void ResidualSumLoop(const T* residual, const T* branch,
                                                   const T* bias, const RowLanes& lanes, T* sum,
                                                   std::int64_t n) {
  const T scale = static_cast<T>(lanes.scale);
  const std::uint32_t threshold = lanes.threshold;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    T b = branch[i];
    if constexpr (kBias) b += bias[i];
    if constexpr (kMask) b = lanes.lanes[i] >= threshold ? scale * b : T(0);
    sum[i] = residual[i] + b;
  }
}

template <typename T>
[[gnu::always_inline]] inline void ResidualSumOf(const T* residual, const T* branch, const T* bias,
                                                 const RowLanes& lanes, T* sum, std::int64_t n) {
  if (lanes.Active()) {
    if (bias != nullptr) {
      return ResidualSumLoop<true, true>(residual, branch, bias, lanes, sum, n);
    }
    return ResidualSumLoop<false, true>(residual, branch, bias, lanes, sum, n);
  }
  if (bias != nullptr) return ResidualSumLoop<true, false>(residual, branch, bias, lanes, sum, n);
  return ResidualSumLoop<false, false>(residual, branch, bias, lanes, sum, n);
}

// With g = dy + more and h = (x - mean) * rstd: dx = rstd (g weight - mean(g weight) - h mean(g
// weight h)) + residual; RMSNorm has no mean(g weight). NormBackwardMeans computes the two means
// and, if wanted, adds to the gradients of weight and bias.
template <typename T>
struct GradientMeans {
  T g, gh;
};
template <bool kMore, bool kWeights, typename T>
[[gnu::always_inline]] inline GradientMeans<T> NormBackwardMeans(const NormBackwardRow<T>& row) {
  const T *dy = row.dy, *more = row.more, *x = row.x, *weight = row.weight;
  const T mean = row.mean, rstd = row.rstd;
  T *dweight = row.dweight, *dbias = row.dbias;
  T sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (std::int64_t i = 0; i < row.n; ++i) {
    T d = dy[i];
    if constexpr (kMore) d += more[i];
    const T dh = d * ((x[i] - mean) * rstd);
    if constexpr (kWeights) {
      dweight[i] += dh;
      dbias[i] += d;
    }
    sum += d * weight[i];
    dot += dh * weight[i];
  }
  return {row.centred ? sum / static_cast<T>(row.n) : T(0), dot / static_cast<T>(row.n)};
}

template <bool kMore, bool kResidual, typename T>
[[gnu::always_inline]] inline void NormBackwardInput(const NormBackwardRow<T>& row,
                                                     GradientMeans<T> means) {
  const T *dy = row.dy, *more = row.more, *x = row.x, *weight = row.weight;
  const T* residual = row.residual;
  const T mean = row.mean, rstd = row.rstd;
  T* dx = row.dx;
#pragma omp simd
  for (std::int64_t i = 0; i < row.n; ++i) {
    T d = dy[i];
    if constexpr (kMore) d += more[i];
    const T h = (x[i] - mean) * rstd;
    T gradient = rstd * (d * weight[i] - means.g - h * means.gh);
    if constexpr (kResidual) gradient += residual[i];
    dx[i] = gradient;
  }
}

template <bool kMore, typename T>
[[gnu::always_inline]] inline void NormBackwardWith(const NormBackwardRow<T>& row) {
  const auto means = row.dweight != nullptr ? NormBackwardMeans<kMore, true>(row)
                                            : NormBackwardMeans<kMore, false>(row);
  if (row.residual != nullptr) {
    NormBackwardInput<kMore, true>(row, means);
  } else {
    NormBackwardInput<kMore, false>(row, means);
  }
}

template <typename T>
[[gnu::always_inline]] inline void NormBackwardOf(const NormBackwardRow<T>& row) {
  if (row.more != nullptr) {
    NormBackwardWith<true>(row);
  } else {
    NormBackwardWith<false>(row);
  }
  if (row.dbranch != nullptr) {
    if (row.lanes.Active()) {
      Mask(row.dx, row.lanes, row.dbranch, row.n);
    } else {
      std::copy_n(row.dx, row.n, row.dbranch);
    }
  }
}

}  // namespace

TRIREME_CLONES void Normalize(const float* x, float mean, float rstd, const float* weight,
                              const float* bias, float* y, std::int64_t n) {
  NormalizeOf(x, mean, rstd, weight, bias, y, n);
}
void Normalize(const double* x, double mean, double rstd, const double* weight, const double* bias,
               double* y, std::int64_t n) {
  NormalizeOf(x, mean, rstd, weight, bias, y, n);
}

TRIREME_CLONES void NormWeightTerm(const float* dy, const float* x, float mean, float rstd,
                                   float* dweight, float* dbias, std::int64_t n) {
  NormWeightTermOf(dy, x, mean, rstd, dweight, dbias, n);
}
void NormWeightTerm(const double* dy, const double* x, double mean, double rstd, double* dweight,
                    double* dbias, std::int64_t n) {
  NormWeightTermOf(dy, x, mean, rstd, dweight, dbias, n);
}

TRIREME_CLONES void ResidualSum(const float* residual, const float* branch, const float* bias,
                                const RowLanes& lanes, float* sum, std::int64_t n) {
  ResidualSumOf(residual, branch, bias, lanes, sum, n);
}
void ResidualSum(const double* residual, const double* branch, const double* bias,
                 const RowLanes& lanes, double* sum, std::int64_t n) {
  ResidualSumOf(residual, branch, bias, lanes, sum, n);
}

TRIREME_CLONES void NormBackward(const NormBackwardRow<float>& row) { NormBackwardOf(row); }
void NormBackward(const NormBackwardRow<double>& row) { NormBackwardOf(row); }

}  // namespace trireme::kernels::rows
