// norm, backward: overwrites dx and dbranch, adds to dweight and dbias. One pass over the rows: a
// block goes through a fixed share of them and keeps its sums of the weights' gradients in
// registers; the sums of blocks are added up in order. Rows too long for that are read twice.
#include <algorithm>
#include <cstring>

#include "backends.hpp"
#include "dropout.cuh"
#include "norm.cuh"
#include "reduce.cuh"
#include "trireme/device/gpu.hpp"

namespace trireme::kernels::cuda {

namespace {

constexpr int kMostLanes = 512, kMostChunks = 4, kBlockThreads = 512;

template <typename T>
struct Operands {
  View<const T> dy, more, x;   // [rows, columns]; more may be null
  const T* weight;             // [columns]
  const SumOf<T>* statistics;  // [rows, 2]
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
#pragma unroll
    for (int i = 0; i < kWidth; ++i) d[i] += add[i];
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) h[i] = (h[i] - mean) * rstd;
}

template <int kWidth, typename S>
__device__ __forceinline__ void MultiplyBy(const S (&weight)[kWidth], S (&d)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) d[i] *= weight[i];
}

// What an access needs once its row's sums are known, loaded before, so that it has arrived then.
template <typename T, int kWidth>
struct Awaited {
  HeldPack<T, kWidth> residual{};  // summand of dx
  unsigned kept = 0;               // DropoutPlace::KeptFrom

  __device__ __forceinline__ void Hold(const Operands<T>& of, std::int64_t row,
                                       std::int64_t column) {
    if (of.residual.data != nullptr) residual.Hold(of.residual.At(row, column));
    if (of.place.kept != nullptr) kept = of.place.KeptFrom(row, column);
  }
};

// dx = rstd (dw - means[0] - h means[1]) + residual with dw = d weight; dbranch = mask(dx).
template <int kWidth, typename T>
__device__ __forceinline__ void StoreGradient(const Operands<T>& of, std::int64_t row,
                                              std::int64_t column, SumOf<T> rstd,
                                              const SumOf<T> (&means)[2],
                                              const SumOf<T> (&dw)[kWidth],
                                              const SumOf<T> (&h)[kWidth],
                                              const Awaited<T, kWidth>& awaited) {
  SumOf<T> dx[kWidth];
  // Not multiplied out: differences cancel before they grow with rstd.
#pragma unroll
  for (int i = 0; i < kWidth; ++i) dx[i] = rstd * (dw[i] - means[0] - h[i] * means[1]);
  if (of.residual.data != nullptr) {
    SumOf<T> add[kWidth];
    awaited.residual.Widen(add);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dx[i] += add[i];
  }
  const Pack<T, kWidth> rounded = NarrowPack<T>(dx);
  StoreGlobal(rounded, of.dx.At(row, column));
  if (of.dbranch.data == nullptr) return;
  if (of.place.Active()) {
    WidenPack(rounded, dx);  // as a pass of its own would see it
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

// The same for a row that does not stay in registers.
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

// Sums of d weight and d weight h over a row become their means, as dx has them.
template <typename T>
__device__ __forceinline__ void SumsToMeans(const Operands<T>& of, SumOf<T> (&means)[2]) {
  means[0] = of.centred ? means[0] * of.inverse : SumOf<T>(0);
  means[1] *= of.inverse;
}

// The block's sums of d h and d, [2, columns], from those of its rows of threads.
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
    // In accesses of 16 bytes: a warp's single ones would meet in the same banks.
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

// One pass, of blocks [rows, lanes]; kChunks accesses per thread. One access: the weight, d weight,
// h and the residual stay in registers; more: they are loaded again, from the cache. partials:
// [blocks, 2, columns] or null.
template <typename T, int kWidth, int kChunks>
__global__ void __launch_bounds__(kBlockThreads, kChunks == 1 ? 2 : 1)
    NormBackwardKernel(const Operands<T> of, SumOf<T>* partials) {
  using S = SumOf<T>;
  __shared__ S shared[2][kBlockThreads / kWarpLanes][2];  // of alternating rows
  const std::int64_t begin = of.rows * blockIdx.x / gridDim.x;
  const std::int64_t end = of.rows * (blockIdx.x + 1) / gridDim.x;
  S dweight[kChunks][kWidth] = {}, dbias[kChunks][kWidth] = {};
  HeldPack<T, kWidth> kept{};  // the weight, of one access
  if constexpr (kChunks == 1) {
    EachAccess<kWidth, 1>(of.columns,
                          [&](std::int64_t column, int) { kept.Hold(of.weight + column); });
  }
  int parity = 0;
  for (std::int64_t first = begin; first < end; first += blockDim.y, parity ^= 1) {
    const std::int64_t row = first + threadIdx.y;
    // Rows beyond the last take part in the sums, with nothing.
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
    // Several accesses are computed in a loop: none of their values has to stay in registers.
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

// Very long rows, one per block: dx and dbranch only.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads) LongRowKernel(const Operands<T> of) {
  using S = SumOf<T>;
  __shared__ S shared[kBlockThreads / kWarpLanes][2];
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

// The weights' gradients of very long rows: sums over blocks of rows, for one column after the
// other; columns from of.columns on are dbias'.
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

// Blocks that share the rows: as many as are resident at once (`resident` a multiprocessor) where
// each then has at least two turns, and their partial sums have room.
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
  const RowTeams teams = TeamsOf(of.columns / kWidth, 1, kMostLanes, kBlockThreads);
  const std::int64_t accesses = (of.columns / kWidth + teams.lanes - 1) / teams.lanes;
  const bool is_long = accesses > kMostChunks;
  const bool weights = !pass.dweight.Empty() || !pass.dbias.Empty();
  const std::int64_t partial_bytes = 2 * of.columns * static_cast<std::int64_t>(sizeof(S));
  const std::int64_t blocks = BlocksFor(*stream.gpu, of.rows, is_long ? 1 : teams.rows,
                                        partial_bytes, accesses == 1 || is_long ? 2 : 1);
  S* const partials = weights ? reinterpret_cast<S*>(stream.gpu->scratch) : nullptr;
  const cudaStream_t queue = device::cuda::Queue(stream);
  if (is_long) {
    if (weights) {  // before dx overwrites what it may share memory with
      ReduceRows(stream, blocks, (of.rows + blocks - 1) / blocks, 2 * of.columns,
                 WeightTerms<T>{of, static_cast<unsigned>(blocks), partials});
    }
    device::cuda::Launch(queue, LongRowKernel<T, kWidth>, dim3(static_cast<unsigned>(of.rows)),
                         dim3(kMostLanes), 0, of);
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
  Dispatch(pass.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = AllowVectors<T>(pass.x.columns, pass.dy, pass.more, pass.x, pass.weight,
                                         pass.residual, pass.dx, pass.dbranch) &&
                         (pass.dbranch.Empty() || AllowVectors<T>(pass.dropout));
    WithWidth<T>(vectors, [&](auto width) { Backward<T, width()>(stream, pass); });
  });
}

}  // namespace trireme::kernels::cuda
