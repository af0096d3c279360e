// Loss and gradient on rows of logits: overwrites statistics and losses; gradients overwrite the
// logits in place. A block handles one row (for losses a thread does). Logits are read once for the
// statistics, and read and written once for the gradient. If a row is the whole vocabulary and fits
// into shared memory, one kernel does both, with one read and one write. A thread's sums have the
// sums' type, a row's are fp64; their order depends only on shape and targets, and is the same
// either way.
#include <bit>
#include <cmath>
#include <limits>

#include "backends.hpp"
#include "reduce.cuh"
#include "trireme/base/partition.hpp"
#include "trireme/device/cuda/launch.cuh"
#include "trireme/device/cuda/matrix.cuh"
#include "trireme/device/gpu.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

// Arguments that all rows share. targets: [rows] on the GPU, < 0: masked; first: first token of
// this slice; vocabulary: tokens of all slices; parts: number of slices.
struct VocabularyRows {
  const std::int32_t* targets = nullptr;
  std::int32_t first = 0;
  std::int64_t vocabulary = 0;
  LossTerms terms;
  int parts = 1;
};

constexpr int kMostThreads = 512;
constexpr int kMostWarps = kMostThreads / kWarpLanes;

// For bf16 the fast exponential is exact enough, since sums are rounded to bf16 in the end.
template <typename T>
__device__ __forceinline__ SumOf<T> Exp(SumOf<T> x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return FastExp(x);
  } else {
    return exp(x);
  }
}

// The larger of two values; a NaN counts as smaller than any number.
struct MaxOfNumbers {
  template <typename S>
  __device__ __forceinline__ S operator()(S a, S b) const {
    return fmax(a, b);
  }
};
// The largest of a warp's values; NaNs are ignored.
template <typename S>
__device__ __forceinline__ S WarpMaxOf(S value) {
  return LaneReduce<MaxOfNumbers>(value, kWarpLanes);
}

// Running maximum and sums relative to it. The maximum starts from the lowest finite number:
// -infinity minus itself would be NaN.
template <typename S>
struct Running {
  S top = std::numeric_limits<S>::lowest();
  S sum = 0;    // sum of exp(logit - top)
  S total = 0;  // sum of logits; added to by the caller of AddLogits
};

// Adds kWidth logits to the maximum and the sum; -infinity adds nothing. A NaN never becomes the
// maximum, but makes the sum NaN. The caller updates `total` before.
template <typename T, int kWidth>
__device__ __forceinline__ void AddLogits(const SumOf<T> (&logits)[kWidth],
                                          Running<SumOf<T>>& running) {
  using S = SumOf<T>;
  S top = running.top;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) top = fmax(logits[i], top);
  S sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += Exp<T>(logits[i] - top);
  running.sum = running.sum * Exp<T>(running.top - top) + sum;
  running.top = top;
}

// Calls body(column, integral_constant width) over the columns of a row: kWidth columns at a time,
// the remaining ones singly.
template <int kWidth, typename Body>
__device__ __forceinline__ void ForColumns(std::int64_t columns, const Body& body) {
  const std::int64_t whole = columns - columns % kWidth;
  const auto thread = static_cast<std::int64_t>(threadIdx.x);
  for (std::int64_t at = thread * kWidth; at < whole; at += std::int64_t{blockDim.x} * kWidth) {
    body(at, std::integral_constant<int, kWidth>{});
  }
  for (std::int64_t at = whole + thread; at < columns; at += blockDim.x) {
    body(at, std::integral_constant<int, 1>{});
  }
}

// Index of column `at` among the kWidth columns from `column` on; -1 if it is not among them.
template <int kWidth>
__device__ __forceinline__ int PlaceAmong(std::int64_t column, std::int64_t at) {
  const auto ahead = static_cast<std::uint64_t>(at - column);
  return ahead < kWidth ? static_cast<int>(ahead) : -1;
}

// The row's statistics over all slices, like Combine on the CPU.
struct WholeRow {
  double top, sum, picked, total;

  __device__ WholeRow(const double* statistics, std::int64_t rows, std::int64_t row, int parts)
      : top(statistics[row * kSoftmaxStatistics]), sum(0), picked(0), total(0) {
    const std::int64_t step = rows * kSoftmaxStatistics;
    const double* first = statistics + row * kSoftmaxStatistics;
    for (int p = 1; p < parts; ++p) top = first[p * step] > top ? first[p * step] : top;
    for (int p = 0; p < parts; ++p) {
      const double* part = first + p * step;
      sum += part[1] * exp(part[0] - top);
      picked += part[2];
      total += part[3];
    }
  }
};

// Combines the results of a warp's threads.
template <typename T>
__device__ __forceinline__ Running<double> OfWarp(const Running<SumOf<T>>& mine) {
  const SumOf<T> top = WarpMaxOf(mine.top);
  const auto sum = static_cast<double>(mine.sum * Exp<T>(mine.top - top));
  return {static_cast<double>(top), WarpSum(sum), WarpSum(static_cast<double>(mine.total))};
}

// Moves the results of a block's warps to the lanes of warp 0, one warp's result per lane.
__device__ __forceinline__ Running<double> ToFirstWarp(const Running<double>& of_warp,
                                                       double (&shared)[3][kMostWarps]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  if (lane == 0) {
    shared[0][warp] = of_warp.top;
    shared[1][warp] = of_warp.sum;
    shared[2][warp] = of_warp.total;
  }
  __syncthreads();
  if (warp > 0 || lane >= static_cast<int>(blockDim.x) / kWarpLanes) return {};
  return {shared[0][lane], shared[1][lane], shared[2][lane]};
}

// Computes the statistics of a row of logits; thread 0 writes them to `out`. Each thread reads its
// own logits (as in ForColumns); after a barrier warp 0 also reads the target's. at: column of the
// target, possibly outside the row.
template <typename T, int kWidth>
__device__ __forceinline__ void StatisticsOfRow(const T* from, std::int64_t columns,
                                                std::int64_t at, double (&shared)[3][kMostWarps],
                                                double* out) {
  using S = SumOf<T>;
  Running<S> running;
  // The target is added at the end in fp64, so that the other tokens still count when it is nearly
  // certain. The access that contains it comes last, so that the loop tests once per access.
  std::int64_t last = -1;
  const auto add = [&](std::int64_t column, int without, auto width) {
    S values[width.value];
    Load<width.value>(from + column, values);
#pragma unroll
    for (int i = 0; i < width.value; ++i) {
      running.total += values[i];
      if (i == without) values[i] = -std::numeric_limits<S>::infinity();
    }
    AddLogits<T>(values, running);
  };
  ForColumns<kWidth>(columns, [&](std::int64_t column, auto width) {
    const int place = PlaceAmong<width.value>(column, at);
    if (width.value == 1 || place < 0) {
      add(column, place, width);
    } else {
      last = column;
    }
  });
  if (last >= 0) {
    add(last, static_cast<int>(at - last), std::integral_constant<int, kWidth>{});
  }
  const Running<double> found = ToFirstWarp(OfWarp<T>(running), shared);
  if (threadIdx.x >= kWarpLanes) return;
  const bool here = at >= 0 && at < columns;
  const double picked = here ? static_cast<double>(Widen(from[at])) : 0;
  double top = WarpMaxOf(found.top);
  if (here && picked > top) top = picked;
  const double sum = WarpSum(found.sum * exp(found.top - top));
  const double total = WarpSum(found.total);
  if (threadIdx.x > 0) return;
  out[0] = top;
  out[1] = here ? sum + exp(picked - top) : sum;
  out[2] = picked;
  out[3] = total;
}

// logits: [rows, columns]; grid: rows.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    StatisticsKernel(View<T> logits, std::int64_t columns, VocabularyRows rows,
                     double* statistics) {
  __shared__ double shared[3][kMostWarps];  // as in ToFirstWarp
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  double* out = statistics + row * kSoftmaxStatistics;
  const std::int32_t target = rows.targets[row];
  if (target < 0) {
    if (threadIdx.x < kSoftmaxStatistics) out[threadIdx.x] = 0;
    return;
  }
  StatisticsOfRow<T, kWidth>(logits.At(row, 0), columns, std::int64_t{target} - rows.first, shared,
                             out);
}

// One row per thread.
__global__ void LossesKernel(std::int64_t count, VocabularyRows rows, const double* statistics,
                             double* losses) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= count) return;
  if (rows.targets[row] < 0) {
    losses[row] = 0;
    return;
  }
  const WholeRow whole(statistics, count, row, rows.parts);
  const double smoothing = rows.terms.smoothing;
  losses[row] = whole.top + log(whole.sum) - (1 - smoothing) * whole.picked -
                smoothing * (whole.total / static_cast<double>(rows.vocabulary));
}

// What the gradient of a row needs from the whole row; shared by the block.
struct GradientTerms {
  double top, factor, pull;

  __device__ __forceinline__ void Set(const WholeRow& whole, const LossTerms& terms) {
    const double log_sum = log(whole.sum), ahead = 2 * terms.z * (whole.top + log_sum);
    top = whole.top;
    factor = (1 + ahead) / whole.sum;
    // expm1 keeps the small remainder when the target is nearly certain (p close to 1).
    const double less = expm1(whole.picked - whole.top - log_sum);
    pull = less + terms.smoothing + ahead * (1 + less);
  }
};

// to = gradient of the logits `from`, maybe in place. Each thread reads and writes its own columns.
template <typename T, int kWidth>
__device__ __forceinline__ void GradientOfRow(const T* from, T* to, std::int64_t columns,
                                              std::int64_t at, const VocabularyRows& rows,
                                              const GradientTerms& terms) {
  using S = SumOf<T>;
  // The maximum is itself a logit, so the difference is exact near it.
  const S top = static_cast<S>(terms.top), factor = static_cast<S>(terms.factor);
  const double even = rows.terms.smoothing / static_cast<double>(rows.vocabulary);
  const S uniform = static_cast<S>(even), pull = static_cast<S>(terms.pull - even);
  ForColumns<kWidth>(columns, [&](std::int64_t column, auto width) {
    S values[width.value];
    Load<width.value>(from + column, values);
#pragma unroll
    for (int i = 0; i < width.value; ++i) values[i] = Exp<T>(values[i] - top) * factor - uniform;
    const int place = PlaceAmong<width.value>(column, at);
    if (place >= 0) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < width.value; ++i) values[i] = i == place ? pull : values[i];
    }
    Store<width.value>(values, to + column);
  });
}

template <typename T, int kWidth>
__device__ __forceinline__ void ClearRow(T* to, std::int64_t columns) {
  ForColumns<kWidth>(columns, [&](std::int64_t column, auto width) {
    const SumOf<T> zeros[width.value] = {};
    Store<width.value>(zeros, to + column);
  });
}

// logits: [count, columns]; grid: count.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    GradientKernel(View<T> logits, std::int64_t count, std::int64_t columns, VocabularyRows rows,
                   const double* statistics) {
  __shared__ GradientTerms terms;
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const std::int32_t target = rows.targets[row];
  T* const data = logits.At(row, 0);
  if (target < 0) return ClearRow<T, kWidth>(data, columns);
  if (threadIdx.x == 0) terms.Set(WholeRow(statistics, count, row, rows.parts), rows.terms);
  __syncthreads();
  GradientOfRow<T, kWidth>(data, data, columns, std::int64_t{target} - rows.first, rows, terms);
}

// Statistics, then gradient, of rows that are the whole vocabulary and are kept in shared memory.
// logits: [rows, columns]; grid: rows; shared memory: one row.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    WholeRowKernel(View<T> logits, std::int64_t columns, VocabularyRows rows, double* statistics) {
  __shared__ double shared[3][kMostWarps];  // as in ToFirstWarp
  __shared__ GradientTerms terms;
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  double* out = statistics + row * kSoftmaxStatistics;
  const std::int32_t target = rows.targets[row];
  T* const data = logits.At(row, 0);
  if (target < 0) {
    if (threadIdx.x < kSoftmaxStatistics) out[threadIdx.x] = 0;
    return ClearRow<T, kWidth>(data, columns);
  }
  T* const kept = device::cuda::SharedMemory<T>();
  ForColumns<kWidth>(columns, [&](std::int64_t column, auto width) {
    if constexpr (width.value * sizeof(T) == device::cuda::kCopyBytes) {
      device::cuda::CopyAsync(kept + column, data + column, true);
    } else {
      kept[column] = data[column];
    }
  });
  device::cuda::CommitCopies();
  device::cuda::WaitForCopies<0>();
  const std::int64_t at = std::int64_t{target} - rows.first;
  double own[kSoftmaxStatistics];
  StatisticsOfRow<T, kWidth>(kept, columns, at, shared, own);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kSoftmaxStatistics; ++i) out[i] = own[i];
    terms.Set(WholeRow(own, 1, 0, 1), rows.terms);
  }
  __syncthreads();
  GradientOfRow<T, kWidth>(kept, data, columns, at, rows, terms);
}

// Number of threads for a row: whole warps, with a few 16-byte accesses per thread.
unsigned ThreadsOfRow(std::int64_t columns, int width) {
  constexpr std::int64_t kAccessesEach = 4;
  const std::int64_t wanted = CeilDivide(columns, kAccessesEach * width);
  if (wanted <= kWarpLanes) return kWarpLanes;
  if (wanted >= kMostThreads) return kMostThreads;
  return std::bit_ceil(static_cast<unsigned>(wanted));
}

// Calls body(T{}, width) for the type of the logits and the width of accesses; it returns a kernel
// (view of the logits, arguments...), which is launched with a block per row. Does nothing if there
// are no rows.
template <typename KernelOf, typename... Arguments>
void ForLogits(const device::Stream& stream, const Matrix& logits, bool rows_in_shared,
               const KernelOf& kernel_of, const Arguments&... arguments) {
  if (logits.rows == 0) return;
  Dispatch(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(RowsOnVectorBoundaries(logits), [&](auto width) {
      const std::int64_t bytes = rows_in_shared ? logits.columns * std::int64_t{sizeof(T)} : 0;
      device::cuda::Launch(device::cuda::Queue(stream), kernel_of(zero, width),
                           dim3(static_cast<unsigned>(logits.rows)),
                           dim3(ThreadsOfRow(logits.columns, width.value)),
                           static_cast<std::size_t>(bytes), ViewOf<T>(logits), arguments...);
    });
  });
}

}  // namespace

// The vocabulary head on the GPU: all logits of a tile are in device memory, [rows, slice], and are
// replaced by their gradient. VocabularyGradient adds to dweight, everything else overwrites. If
// the tile has the whole vocabulary and its rows fit into a block's shared memory,
// VocabularyStatistics also computes the gradient of the logits, and VocabularyGradient only
// multiplies.

namespace {

Matrix LogitsOf(const VocabularyTile& tile, const Matrix& scratch) {
  return {scratch.data, tile.x.dtype, tile.x.rows, tile.weight.rows,
          gpu::LogitStride(tile.weight.rows)};
}

// The operand with its spare rows or columns, which are zero, as the products take it.
Matrix WithSpareRows(Matrix m, std::int64_t spare) {
  m.rows += spare;
  return m;
}
Matrix WithSpareColumns(Matrix m, std::int64_t spare) {
  m.columns += spare;
  return m;
}

VocabularyRows RowsOf(const VocabularyTile& tile, int parts) {
  return {tile.targets, tile.first, tile.vocabulary, tile.terms, parts};
}

// Whether one kernel computes statistics and gradients; some cards have too little shared memory.
bool AtOnce(const device::Stream& stream, const VocabularyTile& tile) {
  return gpu::LogitsReadOnce(tile) && stream.gpu->shared_bytes >= gpu::kLogitsOfBlock;
}

}  // namespace

void LogitStatistics(const device::Stream& stream, const VocabularyTile& tile, const Matrix& logits,
                     double* statistics) {
  const bool at_once = AtOnce(stream, tile);
  // An empty slice has statistics too; they do not change those of the whole row.
  ForLogits(
      stream, logits, at_once,
      [&](auto zero, auto width) {
        using T = decltype(zero);
        return at_once ? WholeRowKernel<T, width.value> : StatisticsKernel<T, width.value>;
      },
      logits.columns, RowsOf(tile, 1), statistics);
}

void LogitGradients(const device::Stream& stream, const VocabularyTile& tile, const Matrix& logits,
                    const double* statistics, int parts) {
  if (logits.columns == 0 || AtOnce(stream, tile)) return;
  ForLogits(
      stream, logits, false,
      [](auto zero, auto width) { return GradientKernel<decltype(zero), width.value>; },
      logits.rows, logits.columns, RowsOf(tile, parts), statistics);
}

void VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                          const Matrix& scratch, double* statistics) {
  const Matrix logits = LogitsOf(tile, scratch);
  cuda::MatrixMultiply(stream, Form::kPlain, tile.x, Form::kTransposed,
                       WithSpareRows(tile.weight, tile.spare), WithSpareColumns(logits, tile.spare),
                       false);
  LogitStatistics(stream, tile, logits, statistics);
}

void VocabularyLosses(const device::Stream& stream, const VocabularyTile& tile,
                      const double* statistics, int parts, double* losses) {
  constexpr std::int64_t kRowsEach = 128;
  const std::int64_t count = tile.x.rows;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(CeilDivide(count, kRowsEach));
  device::cuda::Launch(device::cuda::Queue(stream), LossesKernel, dim3(blocks),
                       dim3(static_cast<unsigned>(kRowsEach)), 0, count, RowsOf(tile, parts),
                       statistics, losses);
}

void VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                        const Matrix& scratch, const double* statistics, int parts,
                        const Matrix& dx, const Matrix& dweight) {
  const Matrix logits = LogitsOf(tile, scratch);
  LogitGradients(stream, tile, logits, statistics, parts);
  const Matrix whole = WithSpareColumns(logits, tile.spare);
  cuda::MatrixMultiply(stream, Form::kPlain, whole, Form::kPlain,
                       WithSpareRows(tile.weight, tile.spare), dx, false);
  cuda::MatrixMultiply(stream, Form::kTransposed, whole, Form::kPlain, tile.x,
                       WithSpareRows(dweight, tile.spare), true);
}

}  // namespace trireme::kernels::cuda
