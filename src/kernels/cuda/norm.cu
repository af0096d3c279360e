// Norms. Forward: overwrites y and statistics, and `sum` if a residual addition comes first. A row
// is read once and kept in registers; very long rows are read again. Backward: overwrites dx and
// dbranch and adds to dweight and dbias in one pass over the rows. A block processes a fixed share
// of rows and keeps its sums for dweight and dbias in registers; the blocks' sums are added up in
// order. Rows too long for that are read twice.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backends.hpp"
#include "dropout.cuh"
#include "reduce.cuh"
#include "trireme/device/cuda/launch.cuh"
#include "trireme/device/gpu.hpp"

namespace trireme::kernels::cuda {

namespace {

constexpr int kMostChunks = 4;
constexpr int kForwardLanes = 1024, kForwardThreads = 128;
constexpr int kBackwardLanes = 512, kBackwardThreads = 512;

// A block has [rows, lanes] threads. `lanes` threads (a power of two up to 32, or whole warps)
// share a row; each makes up to `chunks` accesses, `lanes` accesses apart. chunks = 0: the row is
// too long to be kept in registers.
struct RowTeams {
  unsigned lanes = 1, rows = 1;
  int chunks = 0;
};

// One access per thread if a warp or less suffices, else up to most_chunks per thread; at most
// most_lanes threads per row.
RowTeams TeamsOf(std::int64_t accesses, int most_chunks, std::int64_t most_lanes,
                 std::int64_t block_threads) {
  std::int64_t lanes = static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(accesses, 1))));
  if (accesses > kWarpLanes) {
    const std::int64_t warps =
        CeilDivide(CeilDivide(accesses, std::int64_t{most_chunks}), std::int64_t{kWarpLanes});
    lanes = std::min(warps * kWarpLanes, most_lanes);
  }
  const std::int64_t chunks = CeilDivide(accesses, lanes);
  return {static_cast<unsigned>(lanes),
          static_cast<unsigned>(std::max<std::int64_t>(block_threads / lanes, 1)),
          chunks <= most_chunks ? static_cast<int>(chunks) : 0};
}

// Replaces each value by its sum over a group of `lanes` neighbouring lanes (a power of two; more
// than 32 count as 32). All lanes of the warp must call it.
template <int kCount, typename S>
__device__ __forceinline__ void LaneSums(S (&values)[kCount], int lanes) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    if (step < lanes) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] += __shfl_xor_sync(kAllLanes, values[i], step);
    }
  }
}

// Replaces each value by its sum over the threads that share a row (same threadIdx.y). All threads
// of the block must call it. shared: [warps of the block, kCount]; reusable after another barrier.
template <int kCount, typename S>
__device__ __forceinline__ void TeamSum(S (&values)[kCount], S (*shared)[kCount]) {
  const int lanes = static_cast<int>(blockDim.x);
  LaneSums(values, lanes);
  if (lanes <= kWarpLanes) return;
  const int thread = ThreadNumber(), warps = lanes / kWarpLanes, lane = thread % kWarpLanes;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) shared[thread / kWarpLanes][i] = values[i];
  }
  __syncthreads();
  const int first = static_cast<int>(threadIdx.y) * warps;
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = lane < warps ? shared[first + lane][i] : S(0);
  LaneSums(values, kWarpLanes);
}

// Calls body(column, chunk) for each access of this thread. chunk < kChunks is a constant once the
// loop is unrolled. kChunks = 0: any number of accesses, chunk is always 0.
template <int kWidth, int kChunks, typename Body>
__device__ __forceinline__ void EachAccess(std::int64_t columns, Body body) {
  if constexpr (kChunks == 0) {
    for (std::int64_t column = std::int64_t{threadIdx.x} * kWidth; column < columns;
         column += std::int64_t{blockDim.x} * kWidth) {
      body(column, 0);
    }
  } else {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const std::int64_t column = (std::int64_t{chunk} * blockDim.x + threadIdx.x) * kWidth;
      if (column < columns) body(column, chunk);
    }
  }
}

// Where the forward kernel gets its rows from. Hold loads an access, Take converts it to values:
// all loads of a thread are under way before the first is needed. Again reads a row a second time.
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

// Rows are sum = residual + dropout(branch + bias), as in ResidualForward. The norm uses the sum as
// rounded for storage, so that recomputation can run the norm alone.
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
    if (bias != nullptr) AddConstant<kWidth>(bias + column, b);
    if (place.Active()) RowDropout(place, row).template ApplyAndNote<kWidth>(column, b);
    cuda::Add(values, b);
    const Pack<T, kWidth> rounded = NarrowPack<T>(values);
    StoreGlobal(rounded, sum.At(row, column));
    WidenPack(rounded, values);
  }
  __device__ __forceinline__ void Again(std::int64_t row, std::int64_t column,
                                        SumOf<T> (&values)[kWidth]) const {
    Load<kWidth>(sum.At(row, column), values);
  }
};

// Fused: a b + c, rounded once. Product: a b, always rounded, never fused with a later sum. With
// these all kernels get the same bits; left alone, the compiler may fuse differently in each.
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
  SumOf<T>* statistics;  // [rows, 2]: mean, rstd
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
__global__ void __launch_bounds__(kForwardLanes)
    NormForwardKernel(const Rows source, const NormOutput<T> out, std::int64_t rows,
                      std::int64_t columns) {
  using S = SumOf<T>;
  __shared__ S shared[2][kForwardLanes / kWarpLanes][1];  // one buffer for each of the two sums
  constexpr int kKept = kChunks == 0 ? 1 : kChunks;
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  // Threads of rows beyond the last take part in the sums, with zeros.
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
  const RowTeams teams = TeamsOf(columns / kWidth, kMostChunks, kForwardLanes, kForwardThreads);
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
  WithVectors(x.dtype, x.columns, {x, weight, bias, y}, [&](auto zero, auto width) {
    using T = decltype(zero);
    LaunchForward<T, width()>(stream, PlainRows<T, width()>{ViewOf<const T>(x)},
                              OutputOf<T>(kind, weight, bias, epsilon, y, statistics), x.rows,
                              x.columns);
  });
}

void ResidualNormForward(const device::Stream& stream, NormKind kind, const Matrix& residual,
                         const Matrix& branch, const Matrix& bias, const Dropout& dropout,
                         const Matrix& sum, const Matrix& weight, const Matrix& norm_bias,
                         double epsilon, const Matrix& y, const Matrix& statistics) {
  WithVectors(dropout, sum.dtype, sum.columns, {residual, branch, bias, sum, weight, norm_bias, y},
              [&](auto zero, auto width) {
                using T = decltype(zero);
                const ResidualRows<T, width()> rows{ViewOf<const T>(residual),
                                                    ViewOf<const T>(branch), bias.As<const T>(),
                                                    DropoutPlace(dropout), ViewOf<T>(sum)};
                LaunchForward<T, width()>(
                    stream, rows, OutputOf<T>(kind, weight, norm_bias, epsilon, y, statistics),
                    sum.rows, sum.columns);
              });
}

// Backward.

namespace {

template <typename T>
struct Operands {
  View<const T> dy, more, x;   // [rows, columns]; more may be null
  const T* weight;             // [columns]
  const SumOf<T>* statistics;  // [rows, 2]: mean, rstd
  bool centred;
  View<const T> residual;  // [rows, columns] or null
  DropoutPlace place;
  View<T> dx, dbranch;  // [rows, columns]; dbranch may be null
  std::int64_t rows, columns;
  SumOf<T> inverse;  // 1 / columns
};

// d = dy + more, h = (x - mean) rstd.
template <int kWidth, typename T>
__device__ __forceinline__ void LoadGradient(const Operands<T>& of, std::int64_t row,
                                             std::int64_t column, SumOf<T> mean, SumOf<T> rstd,
                                             SumOf<T> (&d)[kWidth], SumOf<T> (&h)[kWidth]) {
  const bool two = of.more.data != nullptr;
  HeldPack<T, kWidth> more{};
  if (two)
    more.Hold(of.more.At(row, column));  // all loads are under way before the first is needed
  Load<kWidth>(of.x.At(row, column), h);
  Load<kWidth>(of.dy.At(row, column), d);
  if (two) {
    SumOf<T> add[kWidth];
    more.Widen(add);
    cuda::Add(d, add);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) h[i] = (h[i] - mean) * rstd;
}

template <int kWidth, typename S>
__device__ __forceinline__ void MultiplyBy(const S (&weight)[kWidth], S (&d)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) d[i] *= weight[i];
}

// What an access needs after its row's sums are known; loaded earlier, so that it is there in time.
template <typename T, int kWidth>
struct Awaited {
  HeldPack<T, kWidth> residual{};  // added to dx
  unsigned kept = 0;               // DropoutPlace::KeptFrom

  __device__ __forceinline__ void Hold(const Operands<T>& of, std::int64_t row,
                                       std::int64_t column) {
    if (of.residual.data != nullptr) residual.Hold(of.residual.At(row, column));
    if (of.place.kept != nullptr) kept = of.place.KeptFrom(row, column);
  }
};

// dx = rstd (dw - means[0] - h means[1]) + residual with dw = d weight; dbranch = dropout(dx).
template <int kWidth, typename T>
__device__ __forceinline__ void StoreGradient(const Operands<T>& of, std::int64_t row,
                                              std::int64_t column, SumOf<T> rstd,
                                              const SumOf<T> (&means)[2],
                                              const SumOf<T> (&dw)[kWidth],
                                              const SumOf<T> (&h)[kWidth],
                                              const Awaited<T, kWidth>& awaited) {
  SumOf<T> dx[kWidth];
  // Not multiplied out, so that differences cancel before rstd magnifies them.
#pragma unroll
  for (int i = 0; i < kWidth; ++i) dx[i] = rstd * (dw[i] - means[0] - h[i] * means[1]);
  if (of.residual.data != nullptr) {
    SumOf<T> add[kWidth];
    awaited.residual.Widen(add);
    cuda::Add(dx, add);
  }
  const Pack<T, kWidth> rounded = NarrowPack<T>(dx);
  StoreGlobal(rounded, of.dx.At(row, column));
  if (of.dbranch.data == nullptr) return;
  if (of.place.Active()) {
    WidenPack(rounded, dx);  // uses dx as stored, as a separate dropout pass would
    if (of.place.kept != nullptr) {
      of.place.Apply(awaited.kept, dx);
    } else {
      RowDropout(of.place, row).template Apply<kWidth>(column, dx);
    }
    Store<kWidth>(dx, of.dbranch.At(row, column));
  } else {
    StoreGlobal(rounded, of.dbranch.At(row, column));
  }
}

// The same for a row whose values are not kept in registers: loads them again.
template <int kWidth, typename T>
__device__ __forceinline__ void StoreGradientAgain(const Operands<T>& of, std::int64_t row,
                                                   std::int64_t column, SumOf<T> mean,
                                                   SumOf<T> rstd, const SumOf<T> (&means)[2]) {
  Awaited<T, kWidth> awaited;
  awaited.Hold(of, row, column);
  SumOf<T> d[kWidth], h[kWidth], weight[kWidth];
  LoadGradient<kWidth>(of, row, column, mean, rstd, d, h);
  LoadConstant<kWidth>(of.weight + column, weight);
  MultiplyBy(weight, d);
  StoreGradient<kWidth>(of, row, column, rstd, means, d, h, awaited);
}

// Turns the row's sums of d weight and d weight h into the means in the formula of dx.
template <typename T>
__device__ __forceinline__ void SumsToMeans(const Operands<T>& of, SumOf<T> (&means)[2]) {
  means[0] = of.centred ? means[0] * of.inverse : SumOf<T>(0);
  means[1] *= of.inverse;
}

// Writes the block's sums of d h and d, [2, columns]: adds up those of its rows of threads.
template <int kWidth, int kChunks, typename S>
__device__ void StorePartials(std::int64_t columns, const S (&dweight)[kChunks][kWidth],
                              const S (&dbias)[kChunks][kWidth], S* partials) {
  if (blockDim.y == 1) {
    EachAccess<kWidth, kChunks>(columns, [&](std::int64_t column, int chunk) {
      Store<kWidth>(dweight[chunk], partials + column);
      Store<kWidth>(dbias[chunk], partials + columns + column);
    });
    return;
  }
  S* const shared = device::cuda::SharedMemory<S>();  // [blockDim.y, 2, columns]
  S* const own = shared + threadIdx.y * 2 * columns;
  EachAccess<kWidth, kChunks>(columns, [&](std::int64_t column, int chunk) {
    // Stored in 16-byte accesses: single elements of a warp would conflict in the same banks.
    Pack<S, kWidth> pack;
    memcpy(&pack, dweight[chunk], sizeof pack);
    StorePack(pack, own + column);
    memcpy(&pack, dbias[chunk], sizeof pack);
    StorePack(pack, own + columns + column);
  });
  __syncthreads();
  for (std::int64_t at = ThreadNumber(); at < 2 * columns; at += ThreadCount()) {
    S sum = shared[at];
    for (unsigned y = 1; y < blockDim.y; ++y) sum += shared[y * 2 * columns + at];
    partials[at] = sum;
  }
}

// dx, dbranch and partial weight gradients in one pass. A block has [rows, lanes] threads with
// kChunks accesses each. kChunks = 1: weight, d weight, h and residual stay in registers; else they
// are loaded again, from the cache. partials: [blocks, 2, columns], or null (not wanted).
template <typename T, int kWidth, int kChunks>
__global__ void __launch_bounds__(kBackwardThreads, kChunks == 1 ? 2 : 1)
    NormBackwardKernel(const Operands<T> of, SumOf<T>* partials) {
  using S = SumOf<T>;
  __shared__ S shared[2][kBackwardThreads / kWarpLanes][2];  // successive rows take turns
  const std::int64_t begin = of.rows * blockIdx.x / gridDim.x;
  const std::int64_t end = of.rows * (blockIdx.x + 1) / gridDim.x;
  S dweight[kChunks][kWidth] = {}, dbias[kChunks][kWidth] = {};
  HeldPack<T, kWidth> kept{};  // the weight, if kChunks = 1
  if constexpr (kChunks == 1) {
    EachAccess<kWidth, 1>(of.columns,
                          [&](std::int64_t column, int) { kept.Hold(of.weight + column); });
  }
  int parity = 0;
  for (std::int64_t first = begin; first < end; first += blockDim.y, parity ^= 1) {
    const std::int64_t row = first + threadIdx.y;
    // Threads of rows beyond the last only take part in the barriers.
    const std::int64_t width = row < end ? of.columns : 0;
    const S mean = row < end ? of.statistics[2 * row] : S(0);
    const S rstd = row < end ? of.statistics[2 * row + 1] : S(0);
    S d[kWidth] = {}, h[kWidth] = {}, means[2] = {0, 0};
    Awaited<T, kWidth> awaited;
    EachAccess<kWidth, kChunks>(width, [&](std::int64_t column, int chunk) {
      S weight[kWidth];
      if constexpr (kChunks == 1) {
        awaited.Hold(of, row, column);
        kept.Widen(weight);
      } else {
        LoadConstant<kWidth>(of.weight + column, weight);
      }
      LoadGradient<kWidth>(of, row, column, mean, rstd, d, h);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        dweight[chunk][i] += d[i] * h[i];
        dbias[chunk][i] += d[i];
      }
      MultiplyBy(weight, d);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        means[0] += d[i];
        means[1] += d[i] * h[i];
      }
    });
    TeamSum(means, shared[parity]);
    SumsToMeans(of, means);
    // With several accesses this is a loop that keeps none of their values in registers.
    EachAccess<kWidth, kChunks == 1 ? 1 : 0>(width, [&](std::int64_t column, int) {
      if constexpr (kChunks == 1) {
        StoreGradient<kWidth>(of, row, column, rstd, means, d, h, awaited);
      } else {
        StoreGradientAgain<kWidth>(of, row, column, mean, rstd, means);
      }
    });
  }
  if (partials != nullptr) {
    StorePartials(of.columns, dweight, dbias, partials + blockIdx.x * 2 * of.columns);
  }
}

// For very long rows, one per block: computes dx and dbranch only.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kBackwardThreads) LongRowKernel(const Operands<T> of) {
  using S = SumOf<T>;
  __shared__ S shared[kBackwardThreads / kWarpLanes][2];
  const std::int64_t row = blockIdx.x;
  const S mean = of.statistics[2 * row], rstd = of.statistics[2 * row + 1];
  S d[kWidth] = {}, h[kWidth] = {}, means[2] = {0, 0};
  EachAccess<kWidth, 0>(of.columns, [&](std::int64_t column, int) {
    S weight[kWidth];
    LoadConstant<kWidth>(of.weight + column, weight);
    LoadGradient<kWidth>(of, row, column, mean, rstd, d, h);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      means[0] += d[i] * weight[i];
      means[1] += d[i] * h[i] * weight[i];
    }
  });
  TeamSum(means, shared);
  SumsToMeans(of, means);
  EachAccess<kWidth, 0>(of.columns, [&](std::int64_t column, int) {
    StoreGradientAgain<kWidth>(of, row, column, mean, rstd, means);
  });
}

// dweight and dbias for very long rows: sums over blocks of rows, column by column; columns from
// of.columns on are those of dbias.
template <typename T>
struct WeightTerms {
  using Sum = SumOf<T>;
  static constexpr int kWidth = 1;
  Operands<T> of;
  unsigned blocks;
  Sum* partials;  // [blocks, 2 columns]

  __device__ __forceinline__ RowSequence Rows(unsigned group) const {
    const std::int64_t begin = of.rows * group / blocks;
    return {begin, 1, of.rows * (group + 1) / blocks - begin};
  }
  __device__ __forceinline__ void Term(std::int64_t row, std::int64_t column,
                                       Sum (&values)[kWidth]) const {
    Sum h[kWidth];
    const bool weight = column < of.columns;
    LoadGradient<kWidth>(of, row, weight ? column : column - of.columns, of.statistics[2 * row],
                         of.statistics[2 * row + 1], values, h);
    if (weight) values[0] *= h[0];
  }
  __device__ __forceinline__ void Finish(unsigned group, std::int64_t column,
                                         Sum (&sums)[kWidth]) const {
    partials[group * 2 * of.columns + column] = sums[0];
  }
};

template <typename T>
Operands<T> OperandsOf(const NormBackwardPass& pass) {
  return {ViewOf<const T>(pass.dy),
          ViewOf<const T>(pass.more),
          ViewOf<const T>(pass.x),
          pass.weight.As<const T>(),
          pass.statistics.As<const SumOf<T>>(),
          pass.kind == NormKind::kLayerNorm,
          ViewOf<const T>(pass.residual),
          DropoutPlace(pass.dropout),
          ViewOf<T>(pass.dx),
          ViewOf<T>(pass.dbranch),
          pass.x.rows,
          pass.x.columns,
          SumOf<T>(1) / static_cast<SumOf<T>>(pass.x.columns)};
}

// Number of blocks that share the rows: as many as run at once (`resident` per multiprocessor), but
// few enough that each has two turns and that scratch has room for their partial sums.
std::int64_t BlocksFor(const device::GpuContext& gpu, std::int64_t rows, std::int64_t rows_at_once,
                       std::int64_t partial_bytes, std::int64_t resident) {
  const std::int64_t turns = (rows + 2 * rows_at_once - 1) / (2 * rows_at_once);
  const std::int64_t room = gpu.scratch_bytes / partial_bytes;
  return std::max<std::int64_t>(
      std::min<std::int64_t>({turns, resident * gpu.multiprocessors, room}), 1);
}

template <typename T, int kWidth>
void Backward(const device::Stream& stream, const NormBackwardPass& pass) {
  using S = SumOf<T>;
  const Operands<T> of = OperandsOf<T>(pass);
  const RowTeams teams = TeamsOf(of.columns / kWidth, 1, kBackwardLanes, kBackwardThreads);
  const std::int64_t accesses = (of.columns / kWidth + teams.lanes - 1) / teams.lanes;
  const bool is_long = accesses > kMostChunks;
  const bool weights = !pass.dweight.Empty() || !pass.dbias.Empty();
  const std::int64_t partial_bytes = 2 * of.columns * static_cast<std::int64_t>(sizeof(S));
  const std::int64_t blocks = BlocksFor(*stream.gpu, of.rows, is_long ? 1 : teams.rows,
                                        partial_bytes, accesses == 1 || is_long ? 2 : 1);
  S* const partials = weights ? reinterpret_cast<S*>(stream.gpu->scratch) : nullptr;
  const cudaStream_t queue = device::cuda::Queue(stream);
  if (is_long) {
    if (weights) {  // first, because dx may overwrite its operands
      ReduceRows(stream, blocks, (of.rows + blocks - 1) / blocks, 2 * of.columns,
                 WeightTerms<T>{of, static_cast<unsigned>(blocks), partials});
    }
    device::cuda::Launch(queue, LongRowKernel<T, kWidth>, dim3(static_cast<unsigned>(of.rows)),
                         dim3(kBackwardLanes), 0, of);
  } else {
    const auto kernel = accesses == 1   ? NormBackwardKernel<T, kWidth, 1>
                        : accesses == 2 ? NormBackwardKernel<T, kWidth, 2>
                                        : NormBackwardKernel<T, kWidth, kMostChunks>;
    const std::size_t shared =
        weights && teams.rows > 1 ? teams.rows * static_cast<std::size_t>(partial_bytes) : 0;
    device::cuda::Launch(queue, kernel, dim3(static_cast<unsigned>(blocks)),
                         dim3(teams.lanes, teams.rows), shared, of, partials);
  }
  if (!weights) return;
  ReduceRows(stream, 1, blocks, 2 * of.columns,
             PartialSums<S>{partials, 2 * of.columns, blocks, pass.dweight.As<S>(),
                            pass.dbias.As<S>(), of.columns});
}

}  // namespace

void NormBackward(const device::Stream& stream, const NormBackwardPass& pass) {
  if (pass.x.rows == 0) return;
  WithVectors(pass.dbranch.Empty() ? Dropout() : pass.dropout, pass.x.dtype, pass.x.columns,
              {pass.dy, pass.more, pass.x, pass.weight, pass.residual, pass.dx, pass.dbranch},
              [&](auto zero, auto width) { Backward<decltype(zero), width()>(stream, pass); });
}

}  // namespace trireme::kernels::cuda
