// norm: forward overwrites y and statistics; backward-input overwrites or accumulates dx;
// backward-weight accumulates, in kReductionBlocks blocks of rows whatever the number of threads.
#include "trireme/kernels/norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "clones.hpp"
#include "rows.hpp"

namespace trireme::kernels {

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
TRIREME_CLONES void Normalize(const float* x, float mean, float rstd, const float* weight,
                              const float* bias, float* y, std::int64_t n) {
  NormalizeOf(x, mean, rstd, weight, bias, y, n);
}
void Normalize(const double* x, double mean, double rstd, const double* weight, const double* bias,
               double* y, std::int64_t n) {
  NormalizeOf(x, mean, rstd, weight, bias, y, n);
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
TRIREME_CLONES void NormGradient(const float* dy, const float* x, const float* weight, float mean,
                                 float rstd, bool centred, bool accumulate, float* dx,
                                 std::int64_t n) {
  NormGradientOf(dy, x, weight, mean, rstd, centred, accumulate, dx, n);
}
void NormGradient(const double* dy, const double* x, const double* weight, double mean, double rstd,
                  bool centred, bool accumulate, double* dx, std::int64_t n) {
  NormGradientOf(dy, x, weight, mean, rstd, centred, accumulate, dx, n);
}

// dweight += dy * h, dbias += dy.
template <typename T>
[[gnu::always_inline]] inline void WeightTermOf(const T* dy, const T* x, T mean, T rstd, T* dweight,
                                                T* dbias, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    dweight[i] += dy[i] * (x[i] - mean) * rstd;
    dbias[i] += dy[i];
  }
}
TRIREME_CLONES void WeightTerm(const float* dy, const float* x, float mean, float rstd,
                               float* dweight, float* dbias, std::int64_t n) {
  WeightTermOf(dy, x, mean, rstd, dweight, dbias, n);
}
void WeightTerm(const double* dy, const double* x, double mean, double rstd, double* dweight,
                double* dbias, std::int64_t n) {
  WeightTermOf(dy, x, mean, rstd, dweight, dbias, n);
}

// Runs add_row(row, partial) for the rows of every block, partial being the block's zeroed row of
// scratch; returns the number of blocks. The caller adds the partials up in order.
template <typename T, typename AddRow>
int ReduceRows(const device::Stream& stream, std::int64_t row_count, std::int64_t width,
               const tensor::Matrix& scratch, AddRow add_row) {
  const int blocks = static_cast<int>(std::clamp<std::int64_t>(row_count, 1, kReductionBlocks));
#pragma omp parallel for num_threads(stream.threads) schedule(static)
  for (int block = 0; block < blocks; ++block) {
    T* partial = scratch.As<T>() + block * width;
    std::fill(partial, partial + width, T(0));
    const std::int64_t end = row_count * (block + 1) / blocks;
    for (std::int64_t row = row_count * block / blocks; row < end; ++row) add_row(row, partial);
  }
  return blocks;
}

}  // namespace

void NormForward(const device::Stream& stream, NormKind kind, const tensor::Matrix& x,
                 const tensor::Matrix& weight, const tensor::Matrix& bias, double epsilon,
                 const tensor::Matrix& y, const tensor::Matrix& statistics) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.columns;
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < x.rows; ++row) {
      const T* from = x.As<T>() + row * x.stride;
      const T mean = kind == NormKind::kLayerNorm
                         ? static_cast<T>(rows::Sum(from, n) / static_cast<double>(n))
                         : T(0);
      const double variance = rows::SquaredDeviation(from, n, mean) / static_cast<double>(n);
      const T rstd = static_cast<T>(1.0 / std::sqrt(variance + epsilon));
      statistics.As<T>()[2 * row] = mean;
      statistics.As<T>()[2 * row + 1] = rstd;
      Normalize(from, mean, rstd, weight.As<T>(), bias.As<T>(), y.As<T>() + row * y.stride, n);
    }
  });
}

void NormBackwardInput(const device::Stream& stream, NormKind kind, const tensor::Matrix& dy,
                       const tensor::Matrix& x, const tensor::Matrix& weight,
                       const tensor::Matrix& statistics, const tensor::Matrix& dx,
                       bool accumulate) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < x.rows; ++row) {
      NormGradient(dy.As<T>() + row * dy.stride, x.As<T>() + row * x.stride, weight.As<T>(),
                   statistics.As<T>()[2 * row], statistics.As<T>()[2 * row + 1],
                   kind == NormKind::kLayerNorm, accumulate, dx.As<T>() + row * dx.stride,
                   x.columns);
    }
  });
}

void NormBackwardWeight(const device::Stream& stream, const tensor::Matrix& dy,
                        const tensor::Matrix& x, const tensor::Matrix& statistics,
                        const tensor::Matrix& dweight, const tensor::Matrix& dbias,
                        const tensor::Matrix& scratch) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.columns;
    const int blocks =
        ReduceRows<T>(stream, x.rows, 2 * n, scratch, [&](std::int64_t row, T* partial) {
          WeightTerm(dy.As<T>() + row * dy.stride, x.As<T>() + row * x.stride,
                     statistics.As<T>()[2 * row], statistics.As<T>()[2 * row + 1], partial,
                     partial + n, n);
        });
    for (int block = 0; block < blocks; ++block) {
      const T* partial = scratch.As<T>() + block * 2 * n;
      rows::Axpy(T(1), partial, dweight.As<T>(), n);
      if (!dbias.Empty()) rows::Axpy(T(1), partial + n, dbias.As<T>(), n);
    }
  });
}

void ColumnSum(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& sums,
               const tensor::Matrix& scratch) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.columns;
    const int blocks = ReduceRows<T>(stream, x.rows, n, scratch, [&](std::int64_t row, T* partial) {
      rows::Axpy(T(1), x.As<T>() + row * x.stride, partial, n);
    });
    for (int block = 0; block < blocks; ++block) {
      rows::Axpy(T(1), scratch.As<T>() + block * n, sums.As<T>(), n);
    }
  });
}

}  // namespace trireme::kernels
