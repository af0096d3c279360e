// norm, forward: overwrites y and statistics, and sum if a residual addition comes first. A row is
// read once and kept in registers; very long rows are read again.
#include <cmath>

#include "backends.hpp"
#include "dropout.cuh"
#include "norm.cuh"
#include "trireme/device/cuda/launch.cuh"

namespace trireme::kernels::cuda {

namespace {

constexpr int kMostLanes = 1024, kMostChunks = 4, kBlockThreads = 128;

// Source of the kernel's rows. Hold loads an access, Take converts it to values: all loads of a
// thread are under way before the first is needed. Again reads a row a second time.
template <typename T, int kWidth>
struct PlainRows {
  using Held = HeldPack<T, kWidth>;
  static constexpr int kMostHeld = 4;
  View<const T> x;  // [rows, columns]

  __device__ __forceinline__ void Hold(std::int64_t row, std::int64_t column, Held& held) const {
    held.Hold(x.At(row, column));
  }
  __device__ __forceinline__ void Take(std::int64_t, std::int64_t, const Held& held,
                                       SumOf<T> (&values)[kWidth]) const {
    held.Widen(values);
  }
  __device__ __forceinline__ void Again(std::int64_t row, std::int64_t column,
                                        SumOf<T> (&values)[kWidth]) const {
    Load<kWidth>(x.At(row, column), values);
  }
};

// sum = residual + dropout(branch + bias), as ResidualForward: from there on the norm sees what was
// stored, so that recomputation may do the norm alone.
template <typename T, int kWidth>
struct ResidualRows {
  struct Held {
    HeldPack<T, kWidth> residual, branch;
  };
  static constexpr int kMostHeld = 2;
  View<const T> residual, branch;  // [rows, columns]
  const T* bias;                   // [columns] or null
  DropoutPlace place;
  View<T> sum;  // may be residual or branch

  __device__ __forceinline__ void Hold(std::int64_t row, std::int64_t column, Held& held) const {
    held.residual.Hold(residual.At(row, column));
    held.branch.Hold(branch.At(row, column));
  }
  __device__ __forceinline__ void Take(std::int64_t row, std::int64_t column, const Held& held,
                                       SumOf<T> (&values)[kWidth]) const {
    SumOf<T> b[kWidth];
    held.residual.Widen(values);
    held.branch.Widen(b);
    if (bias != nullptr) {
      SumOf<T> add[kWidth];
      LoadConstant<kWidth>(bias + column, add);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) b[i] += add[i];
    }
    if (place.Active()) RowDropout(place, row).template ApplyAndNote<kWidth>(column, b);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += b[i];
    const Pack<T, kWidth> rounded = NarrowPack<T>(values);
    StoreGlobal(rounded, sum.At(row, column));
    WidenPack(rounded, values);
  }
  __device__ __forceinline__ void Again(std::int64_t row, std::int64_t column,
                                        SumOf<T> (&values)[kWidth]) const {
    Load<kWidth>(sum.At(row, column), values);
  }
};

// a b + c, rounded once, and a b, rounded whatever is done with it. Products that sums follow are
// written so, and all kernels then have the same bits: which of them compilers fuse may differ from
// kernel to kernel.
__device__ __forceinline__ float Fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double Fused(double a, double b, double c) { return fma(a, b, c); }
__device__ __forceinline__ float Product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double Product(double a, double b) { return __dmul_rn(a, b); }

__device__ __forceinline__ float InverseRoot(float x) { return rsqrtf(x); }
__device__ __forceinline__ double InverseRoot(double x) { return 1 / sqrt(x); }

template <typename T>
struct NormOutput {
  const T *weight, *bias;  // [columns]; bias may be null
  SumOf<T> epsilon;
  SumOf<T> inverse;  // 1 / columns
  bool centred;
  View<T> y;             // [rows, columns]
  SumOf<T>* statistics;  // [rows, 2]
};

template <int kWidth, typename T>
__device__ __forceinline__ void Normalize(const NormOutput<T>& out, std::int64_t row,
                                          std::int64_t column, SumOf<T> mean, SumOf<T> rstd,
                                          const SumOf<T> (&x)[kWidth]) {
  SumOf<T> weight[kWidth], y[kWidth];
  LoadConstant<kWidth>(out.weight + column, weight);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) y[i] = (x[i] - mean) * rstd;
  if (out.bias != nullptr) {
    SumOf<T> bias[kWidth];
    LoadConstant<kWidth>(out.bias + column, bias);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) y[i] = Fused(y[i], weight[i], bias[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) y[i] *= weight[i];
  }
  Store<kWidth>(y, out.y.At(row, column));
}

template <typename T, int kWidth, int kChunks, typename Rows>
__global__ void __launch_bounds__(kMostLanes)
    NormForwardKernel(const Rows source, const NormOutput<T> out, std::int64_t rows,
                      std::int64_t columns) {
  using S = SumOf<T>;
  __shared__ S shared[2][kMostLanes / kWarpLanes][1];  // one for each sum
  constexpr int kKept = kChunks == 0 ? 1 : kChunks;
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  // Rows beyond the last take part in the sums, with nothing.
  const std::int64_t width = row < rows ? columns : 0;
  S x[kKept][kWidth] = {};
  S sum[1] = {0}, square[1] = {0};
  constexpr bool kHeld = kChunks > 0 && kChunks <= Rows::kMostHeld;
  typename Rows::Held held[kHeld ? kKept : 1] = {};
  if constexpr (kHeld) {
    EachAccess<kWidth, kChunks>(
        width, [&](std::int64_t column, int chunk) { source.Hold(row, column, held[chunk]); });
  }
  EachAccess<kWidth, kChunks>(width, [&](std::int64_t column, int chunk) {
    if constexpr (!kHeld) source.Hold(row, column, held[0]);
    source.Take(row, column, held[kHeld ? chunk : 0], x[chunk]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[0] += x[chunk][i];
  });
  S mean = 0;
  if (out.centred) {
    TeamSum(sum, shared[0]);
    mean = Product(sum[0], out.inverse);
  }
  EachAccess<kWidth, kChunks>(width, [&](std::int64_t column, int chunk) {
    if constexpr (kChunks == 0) source.Again(row, column, x[0]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const S deviation = x[chunk][i] - mean;
      square[0] = Fused(deviation, deviation, square[0]);
    }
  });
  TeamSum(square, shared[1]);
  const S rstd = InverseRoot(Fused(square[0], out.inverse, out.epsilon));
  if (threadIdx.x == 0 && row < rows) {
    out.statistics[2 * row] = mean;
    out.statistics[2 * row + 1] = rstd;
  }
  EachAccess<kWidth, kChunks>(width, [&](std::int64_t column, int chunk) {
    if constexpr (kChunks == 0) source.Again(row, column, x[0]);
    Normalize<kWidth>(out, row, column, mean, rstd, x[chunk]);
  });
}

template <typename T, int kWidth, typename Rows>
void LaunchForward(const device::Stream& stream, const Rows& source, const NormOutput<T>& out,
                   std::int64_t rows, std::int64_t columns) {
  if (rows == 0) return;
  const RowTeams teams = TeamsOf(columns / kWidth, kMostChunks, kMostLanes, kBlockThreads);
  const auto kernel = teams.chunks == 0   ? NormForwardKernel<T, kWidth, 0, Rows>
                      : teams.chunks == 1 ? NormForwardKernel<T, kWidth, 1, Rows>
                      : teams.chunks == 2 ? NormForwardKernel<T, kWidth, 2, Rows>
                                          : NormForwardKernel<T, kWidth, kMostChunks, Rows>;
  const auto blocks = static_cast<unsigned>((rows + teams.rows - 1) / teams.rows);
  device::cuda::Launch(device::cuda::Queue(stream), kernel, dim3(blocks),
                       dim3(teams.lanes, teams.rows), 0, source, out, rows, columns);
}

template <typename T>
NormOutput<T> OutputOf(NormKind kind, const Matrix& weight, const Matrix& bias, double epsilon,
                       const Matrix& y, const Matrix& statistics) {
  return {weight.As<const T>(),           bias.As<const T>(),
          static_cast<SumOf<T>>(epsilon), SumOf<T>(1) / static_cast<SumOf<T>>(y.columns),
          kind == NormKind::kLayerNorm,   ViewOf<T>(y),
          statistics.As<SumOf<T>>()};
}

}  // namespace

void NormForward(const device::Stream& stream, NormKind kind, const Matrix& x, const Matrix& weight,
                 const Matrix& bias, double epsilon, const Matrix& y, const Matrix& statistics) {
  Dispatch(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(x.columns, x, weight, bias, y), [&](auto width) {
      LaunchForward<T, width()>(stream, PlainRows<T, width()>{ViewOf<const T>(x)},
                                OutputOf<T>(kind, weight, bias, epsilon, y, statistics), x.rows,
                                x.columns);
    });
  });
}

void ResidualNormForward(const device::Stream& stream, NormKind kind, const Matrix& residual,
                         const Matrix& branch, const Matrix& bias, const Dropout& dropout,
                         const Matrix& sum, const Matrix& weight, const Matrix& norm_bias,
                         double epsilon, const Matrix& y, const Matrix& statistics) {
  Dispatch(sum.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors =
        AllowVectors<T>(sum.columns, residual, branch, bias, sum, weight, norm_bias, y) &&
        AllowVectors<T>(dropout);
    WithWidth<T>(vectors, [&](auto width) {
      const ResidualRows<T, width()> rows{ViewOf<const T>(residual), ViewOf<const T>(branch),
                                          bias.As<const T>(), DropoutPlace(dropout),
                                          ViewOf<T>(sum)};
      LaunchForward<T, width()>(stream, rows,
                                OutputOf<T>(kind, weight, norm_bias, epsilon, y, statistics),
                                sum.rows, sum.columns);
    });
  });
}

}  // namespace trireme::kernels::cuda
