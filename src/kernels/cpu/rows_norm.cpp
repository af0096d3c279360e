// Norms on one row. Each pass over a row except the first finds it in the nearest cache.
#include "rows_norm.hpp"

#include <algorithm>

#include "clones.hpp"

namespace trireme::kernels::rows {

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

// With g = dy * weight and h = (x - mean) * rstd: dx = rstd (g - mean(g) - h mean(g h)); RMSNorm
// has no mean(g).
template <typename T>
[[gnu::always_inline]] inline void NormGradientOf(const T* dy, const T* x, const T* weight, T mean,
                                                  T rstd, bool centred, bool accumulate, T* dx,
                                                  std::int64_t n) {
  T sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = dy[i] * weight[i];
    sum += g;
    dot += g * (x[i] - mean) * rstd;
  }
  const T mean_g = centred ? sum / static_cast<T>(n) : T(0);
  const T mean_gh = dot / static_cast<T>(n);
  if (accumulate) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const T h = (x[i] - mean) * rstd;
      dx[i] += rstd * (dy[i] * weight[i] - mean_g - h * mean_gh);
    }
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const T h = (x[i] - mean) * rstd;
      dx[i] = rstd * (dy[i] * weight[i] - mean_g - h * mean_gh);
    }
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

// The loops below exist once for every set of optional operands: a condition inside would be one
// for each element.
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

// mean(g weight) and mean(g weight h); adds to the weights' gradients if wanted.
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

TRIREME_CLONES void NormGradient(const float* dy, const float* x, const float* weight, float mean,
                                 float rstd, bool centred, bool accumulate, float* dx,
                                 std::int64_t n) {
  NormGradientOf(dy, x, weight, mean, rstd, centred, accumulate, dx, n);
}
void NormGradient(const double* dy, const double* x, const double* weight, double mean, double rstd,
                  bool centred, bool accumulate, double* dx, std::int64_t n) {
  NormGradientOf(dy, x, weight, mean, rstd, centred, accumulate, dx, n);
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
