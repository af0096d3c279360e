// Operations on one contiguous row: the vectorised inner loops of all CPU kernels except products.
// Most are templates; their overloads for fp32 are compiled for several instruction sets
// (rows.cpp), the templates themselves serve fp64, for verification.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "trireme/base/philox.hpp"
#include "trireme/kernels/elementwise.hpp"

// Attribute for row primitives, which are compiled twice on x86-64, for AVX2 and for AVX-512, and
// chosen when the program starts.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TRIREME_CLONES __attribute__((target_clones("arch=x86-64-v4", "default")))
#else
#define TRIREME_CLONES
#endif

namespace trireme::kernels {

// exp and the logistic function in a form that compilers vectorise; in fp64 those of the standard
// library.

// exp(x) for -87 <= x <= 88 with relative error below 1.2e-7: Cephes' polynomial (Moshier 1989)
// after the reduction x = n ln 2 + r.
[[gnu::always_inline]] inline float ExpWithin(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145751953125f) - n * 1.428606765330187e-06f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<std::int32_t>(shifted) << 23) + 0x3F800000);
}

// exp(x), with x clamped to [-87, 88].
[[gnu::always_inline]] inline float Exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  return ExpWithin(x);
}
[[gnu::always_inline]] inline double Exp(double x) { return std::exp(x); }

// 1 / (1 + exp(-x)); unspecified for NaN, but callers multiply the result by x.
[[gnu::always_inline]] inline float Sigmoid(float x) {
  // Limits |x| to 87 by its bits: after a comparison of floats the compiler would blend in a
  // constant after every later operation.
  constexpr std::uint32_t kSign = 0x80000000;
  const auto bits = std::bit_cast<std::uint32_t>(-x);
  const auto magnitude =
      std::min(static_cast<std::int32_t>(bits & ~kSign), std::bit_cast<std::int32_t>(87.0f));
  const auto within = static_cast<std::uint32_t>(magnitude) | (bits & kSign);
  return 1.0f / (1.0f + ExpWithin(std::bit_cast<float>(within)));
}
[[gnu::always_inline]] inline double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace trireme::kernels

namespace trireme::kernels::rows {

// A sum adds blocks of this many elements in the row's type, and the blocks' sums in fp64.
inline constexpr std::int64_t kSumBlock = 1024;

// max of x[0, n), n >= 1.
template <typename T>
[[gnu::always_inline]] inline T Max(const T* x, std::int64_t n) {
  T top = x[0];
#pragma omp simd reduction(max : top)
  for (std::int64_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}
float Max(const float* x, std::int64_t n);

// x = exp(scale * x - shift) in place; returns the sum of the results, blocks added up in fp64.
template <typename T>
[[gnu::always_inline]] inline double ExpSum(T* x, std::int64_t n, T scale, T shift) {
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
double ExpSum(float* x, std::int64_t n, float scale, float shift);

// Sum of x[0, n), and of (x - mean)^2. T: float or double.
template <typename T>
double Sum(const T* x, std::int64_t n);
template <typename T>
double SquaredDeviation(const T* x, std::int64_t n, T mean);

// Affine: y = a x + b. Axpy: y += a x.
template <typename T>
[[gnu::always_inline]] inline void Affine(const T* x, T a, T b, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = a * x[i] + b;
}
void Affine(const float* x, float a, float b, float* y, std::int64_t n);
template <typename T>
[[gnu::always_inline]] inline void Axpy(T a, const T* x, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}
void Axpy(float a, const float* x, float* y, std::int64_t n);

// sum += `count` rows of x, in order for each column.
template <typename T>
[[gnu::always_inline]] inline void AddRows(const T* x, std::int64_t stride, std::int64_t count,
                                           T* sum, std::int64_t n) {
  // Four rows at a time, so that sums are not stored and loaded again after each row.
  for (; count >= 4; count -= 4, x += 4 * stride) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      sum[i] = sum[i] + x[i] + x[i + stride] + x[i + 2 * stride] + x[i + 3 * stride];
    }
  }
  for (; count > 0; --count, x += stride) Axpy<T>(T(1), x, sum, n);
}
void AddRows(const float* x, std::int64_t stride, std::int64_t count, float* sum, std::int64_t n);

// GELU, tanh form: 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3). Computed as x
// sigmoid(2u), which is equal and does not cancel in the negative tail.
inline constexpr double kGeluScale = 0.79788456080286535588;
inline constexpr double kGeluCubic = 0.044715;

// pre += bias (may be null), then out = act(pre).
template <typename T>
[[gnu::always_inline]] inline void BiasRelu(T* pre, const T* bias, T* out, std::int64_t n) {
  if (bias != nullptr) Axpy<T>(T(1), bias, pre, n);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = pre[i] < T(0) ? T(0) : pre[i];
}
void BiasRelu(float* pre, const float* bias, float* out, std::int64_t n);
template <typename T>
[[gnu::always_inline]] inline void BiasGelu(T* pre, const T* bias, T* out, std::int64_t n) {
  if (bias != nullptr) Axpy<T>(T(1), bias, pre, n);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = pre[i];
    out[i] = x * Sigmoid(T(2 * kGeluScale) * (x + T(kGeluCubic) * x * x * x));
  }
}
void BiasGelu(float* pre, const float* bias, float* out, std::int64_t n);
// d = dout * act'(pre).
template <typename T>
[[gnu::always_inline]] inline void GeluGradient(const T* pre, const T* dout, T* d, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = pre[i];
    const T s = Sigmoid(T(2 * kGeluScale) * (x + T(kGeluCubic) * x * x * x));
    const T slope = T(2 * kGeluScale) * (T(1) + T(3 * kGeluCubic) * x * x);
    d[i] = dout[i] * (s + x * s * (T(1) - s) * slope);
  }
}
void GeluGradient(const float* pre, const float* dout, float* d, std::int64_t n);
// out = silu(gate) * up, and the gradients of gate and up.
template <typename T>
[[gnu::always_inline]] inline void Swiglu(const T* gate, const T* up, T* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = gate[i] * Sigmoid(gate[i]) * up[i];
}
void Swiglu(const float* gate, const float* up, float* out, std::int64_t n);
template <typename T>
[[gnu::always_inline]] inline void SwigluGradient(const T* gate, const T* up, const T* dout,
                                                  T* dgate, T* dup, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = gate[i], u = up[i], d = dout[i];
    const T sigmoid = Sigmoid(g);
    dgate[i] = d * u * sigmoid * (T(1) + g * (T(1) - sigmoid));
    dup[i] = d * g * sigmoid;
  }
}
void SwigluGradient(const float* gate, const float* up, const float* dout, float* dgate, float* dup,
                    std::int64_t n);

// Fills lanes[0, 8 ceil(n / 8)) with the 16-bit lanes of the Philox counters {c0 + i / 8, c1, c2,
// c3}, i.e. of features 8 c0 to 8 c0 + n - 1. `lanes` needs room for n rounded up to 8.
void PhiloxLanes(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                 std::uint32_t c3, std::int64_t n, std::uint16_t* lanes);
// y = lanes >= threshold ? scale * x : 0; y may be x.
template <typename T>
[[gnu::always_inline]] inline void Mask(const T* x, const std::uint16_t* lanes,
                                        std::uint32_t threshold, T scale, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = lanes[i] >= threshold ? scale * x[i] : T(0);
}
void Mask(const float* x, const std::uint16_t* lanes, std::uint32_t threshold, float scale,
          float* y, std::int64_t n);
// Dropout mask of a row's elements; inactive: all elements are kept unchanged.
struct RowLanes {
  const std::uint16_t* lanes = nullptr;
  std::uint32_t threshold = 0;
  double scale = 1;
  bool Active() const { return lanes != nullptr; }
};
template <typename T>
void Mask(const T* x, const RowLanes& by, T* y, std::int64_t n) {
  Mask(x, by.lanes, by.threshold, static_cast<T>(by.scale), y, n);
}

// Norms on one contiguous row: forward, backward, and fused with the operations before the norm
// (bias, dropout, residual). All passes over a row but the first find it in the nearest cache.

// y = (x - mean) * rstd * weight + bias; bias may be null.
template <typename T>
[[gnu::always_inline]] inline void Normalize(const T* x, T mean, T rstd, const T* weight,
                                             const T* bias, T* y, std::int64_t n) {
  if (bias != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i];
  }
}
void Normalize(const float* x, float mean, float rstd, const float* weight, const float* bias,
               float* y, std::int64_t n);

// 1 / sqrt(mean of (x - mean)^2, plus epsilon).
template <typename T>
T ReciprocalDeviation(const T* x, std::int64_t n, T mean, double epsilon) {
  return static_cast<T>(1.0 /
                        std::sqrt(SquaredDeviation(x, n, mean) / static_cast<double>(n) + epsilon));
}

// dweight += dy * (x - mean) * rstd, dbias += dy.
template <typename T>
[[gnu::always_inline]] inline void NormWeightTerm(const T* dy, const T* x, T mean, T rstd,
                                                  T* dweight, T* dbias, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    dweight[i] += dy[i] * (x[i] - mean) * rstd;
    dbias[i] += dy[i];
  }
}
void NormWeightTerm(const float* dy, const float* x, float mean, float rstd, float* dweight,
                    float* dbias, std::int64_t n);

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

// sum = residual + dropout(branch + bias); bias may be null; sum may be residual or branch.
template <typename T>
[[gnu::always_inline]] inline void ResidualSum(const T* residual, const T* branch, const T* bias,
                                               const RowLanes& lanes, T* sum, std::int64_t n) {
  if (lanes.Active()) {
    bias != nullptr ? ResidualSumLoop<true, true>(residual, branch, bias, lanes, sum, n)
                    : ResidualSumLoop<false, true>(residual, branch, bias, lanes, sum, n);
  } else {
    bias != nullptr ? ResidualSumLoop<true, false>(residual, branch, bias, lanes, sum, n)
                    : ResidualSumLoop<false, false>(residual, branch, bias, lanes, sum, n);
  }
}
void ResidualSum(const float* residual, const float* branch, const float* bias,
                 const RowLanes& lanes, float* sum, std::int64_t n);

// One row of kernels::NormBackwardPass: with g = dy + more, dx = residual + gradient of the input,
// dbranch = dropout(dx), dweight and dbias as in NormWeightTerm. May be null: more, residual,
// dbranch, and dweight with dbias (both or neither).
template <typename T>
struct NormBackwardRow {
  const T *dy, *more, *x, *weight;
  T mean, rstd;
  bool centred;
  const T* residual;
  RowLanes lanes;
  T *dx, *dbranch, *dweight, *dbias;
  std::int64_t n;
};

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
  row.residual != nullptr ? NormBackwardInput<kMore, true>(row, means)
                          : NormBackwardInput<kMore, false>(row, means);
}
template <typename T>
[[gnu::always_inline]] inline void NormBackward(const NormBackwardRow<T>& row) {
  row.more != nullptr ? NormBackwardWith<true>(row) : NormBackwardWith<false>(row);
  if (row.dbranch == nullptr) return;
  if (row.lanes.Active()) {
    Mask(row.dx, row.lanes, row.dbranch, row.n);
  } else {
    std::copy_n(row.dx, row.n, row.dbranch);
  }
}
void NormBackward(const NormBackwardRow<float>& row);

}  // namespace trireme::kernels::rows

namespace trireme::kernels {

// A thread's scratch, which grows to the largest use and stays: the step loop allocates nothing.

inline constexpr std::int64_t kPage = 4096;  // alignment of a thread's scratch, bytes

// `count` uninitialised elements, page-aligned, valid until this thread calls it again with the
// same Use (a type that names the purpose).
template <typename Use, typename T>
T* ThreadScratch(std::int64_t count) {
  struct Free {
    void operator()(T* data) const { ::operator delete[](data, std::align_val_t{kPage}); }
  };
  thread_local std::unique_ptr<T[], Free> memory;
  thread_local std::int64_t room = 0;
  if (count > room) {
    room = 0;
    memory.reset(static_cast<T*>(
        ::operator new[](static_cast<std::size_t>(count) * sizeof(T), std::align_val_t{kPage})));
    room = count;
  }
  return memory.get();
}

// A thread's mask generator: the dropout lanes of one row at a time.

class RowMask {
 public:
  // For rows of up to `features` columns. Inactive dropout changes nothing.
  RowMask(const Dropout& dropout, std::int64_t features)
      : dropout_(dropout),
        key_(MakeKey(dropout.seed, dropout.purpose, dropout.layer, dropout.site)),
        row_key_(MakeKey(dropout.seed, dropout.row_purpose, dropout.layer, dropout.site)),
        threshold_(dropout.Threshold()),
        row_threshold_(dropout.RowThreshold()),
        scale_(dropout.Scale()),
        room_(features + 2 * kLanes) {}

  // Lanes of row `row` of the matrix, valid until this thread's next call on any mask.
  rows::RowLanes Lanes(std::int64_t row, std::int64_t n) const {
    if (!Active()) return {};
    const std::int64_t global = dropout_.first_row + row;
    const std::uint64_t ordinal = dropout_.ordinals == nullptr
                                      ? dropout_.ordinal
                                      : dropout_.ordinals[global / dropout_.length];
    // A slice may begin within a counter's lanes: draws from the counter's first lane on.
    const std::int64_t skipped = dropout_.first_feature % kLanes;
    auto* lanes = ThreadScratch<RowMask, std::uint16_t>(room_);
    const auto word =
        static_cast<std::uint32_t>(dropout_.words == nullptr ? 0 : dropout_.words[global]);
    const bool dropped = row_threshold_ > 0 && RowDropped(row_key_, row_threshold_, word, ordinal);
    if (dropped || threshold_ == 0) {  // all elements or none
      std::fill_n(lanes, n, std::uint16_t{0});
      return {lanes, dropped ? 1U : 0U, scale_};
    }
    rows::PhiloxLanes(key_, static_cast<std::uint32_t>(dropout_.first_feature / kLanes),
                      static_cast<std::uint32_t>(dropout_.PositionOf(row)),
                      static_cast<std::uint32_t>(ordinal),
                      static_cast<std::uint32_t>(ordinal >> 32), skipped + n, lanes);
    return {lanes + skipped, threshold_, scale_};
  }
  // y = dropout(x), where x is row `row` of the matrix; y may be x. Call it only if Active().
  template <typename T>
  void Apply(std::int64_t row, const T* x, T* y, std::int64_t n) const {
    rows::Mask(x, Lanes(row, n), y, n);
  }
  bool Active() const { return threshold_ > 0 || row_threshold_ > 0; }

 private:
  static constexpr std::int64_t kLanes = 8;  // features per Philox counter
  Dropout dropout_;
  PhiloxKey key_, row_key_;
  std::uint32_t threshold_, row_threshold_;
  double scale_;
  std::int64_t room_;  // elements that a row's lanes may take
};

// Row `row` of a matrix; null if it is Empty().
template <typename T>
T* RowOf(const Matrix& x, std::int64_t row) {
  return x.Empty() ? nullptr : x.As<T>() + row * x.stride;
}

// Calls body(T{}, row), T being the C++ type of `dtype`, for all rows, on the stream's threads.
template <typename Body>
void EachRow(const device::Stream& stream, Dtype dtype, std::int64_t rows, const Body& body) {
  DispatchDtype(dtype, [&](auto zero) {
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) body(zero, row);
  });
}
// The same for the rows of x: calls body(T{}, row, mask) with a mask generator per thread.
template <typename Body>
void EachMaskedRow(const device::Stream& stream, const Matrix& x, const Dropout& dropout,
                   const Body& body) {
  DispatchDtype(x.dtype, [&](auto zero) {
#pragma omp parallel num_threads(stream.threads)
    {
      const RowMask mask(dropout, x.columns);
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < x.rows; ++row) body(zero, row, mask);
    }
  });
}

}  // namespace trireme::kernels
