// Tiles of attention in shared memory and in registers: sizes, loads, and the products of a block's
// threads. A thread has kMyQueries x kMyKeys scores and some rows of kMine columns of an output, so
// that every element it reads from shared memory serves several products.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_TILE_CUH_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_TILE_CUH_

#include <cstdint>
#include <type_traits>

#include "reduce.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

inline constexpr int kAttentionWidth = 4;  // elements that a thread reads and writes at once

// Threads stand in rows and columns: those of a row share the queries (or keys) of their output.
template <int kRowThreads_, int kColumnThreads_, int kMyQueries_, int kMyKeys_, int kDims_>
struct AttentionSizes {
  static constexpr int kRowThreads = kRowThreads_, kColumnThreads = kColumnThreads_;
  static constexpr int kThreads = kRowThreads * kColumnThreads;
  static constexpr int kMyQueries = kMyQueries_, kMyKeys = kMyKeys_;
  static constexpr int kQueries = kRowThreads * kMyQueries, kKeys = kColumnThreads * kMyKeys;
  static constexpr int kKeyRows = kKeys / kRowThreads;  // keys of a thread's gradients
  static constexpr int kDims = kDims_;                  // most head_dim
  static constexpr bool kDocuments = false;             // AttentionDocuments
  // A thread's columns of an output: kPieces times kAttentionWidth, kStep apart.
  static constexpr int kStep = kColumnThreads * kAttentionWidth, kPieces = kDims / kStep;
  // Rows in shared memory, padded so that neighbouring rows lie in different banks.
  static constexpr int kRow = kDims + kAttentionWidth, kScoreRow = kKeys + kAttentionWidth;
  static_assert(kThreads % kWarpLanes == 0 && kWarpLanes % kColumnThreads == 0);
  static_assert(kDims % kStep == 0 && kKeys % kRowThreads == 0);
  static_assert(kKeys % kAttentionWidth == 0);

  __device__ static int Row() { return static_cast<int>(threadIdx.x) / kColumnThreads; }
  __device__ static int Column() { return static_cast<int>(threadIdx.x) % kColumnThreads; }
};

// The same tiles in kernels that keep documents apart (AttentionOperands::begins): a type of its
// own, so that kernels without documents stay as they are.
template <typename Sizes>
struct AttentionDocuments : Sizes {
  static constexpr bool kDocuments = true;
};

// For __launch_bounds__: as many blocks on a multiprocessor as leave a thread 128 registers, and no
// more than shared memory holds. Those of fp64 and of the widest heads need more registers.
template <typename Sizes, typename Sum>
inline constexpr int kAttentionBlocks = sizeof(Sum) == sizeof(double) || Sizes::kDims > 128 ? 1
                                        : Sizes::kDims > 64 && Sizes::kThreads <= 128
                                            ? 3
                                            : 512 / Sizes::kThreads;

template <typename Sum>
using AttentionPack = Pack<Sum, kAttentionWidth>;

// The rows of a head in memory.
template <typename T>
struct AttentionHead {
  using Sum = SumOf<std::remove_const_t<T>>;
  T* data;
  std::int64_t stride;
  int dims;
  bool vector;  // AttentionOperands

  // Elements [column, column + kAttentionWidth) of a row; zeros beyond the head's.
  __device__ __forceinline__ AttentionPack<Sum> Load(int row, int column) const {
    const T* const from = data + row * stride + column;
    AttentionPack<Sum> pack;
    if (vector && column < dims) {
      cuda::Load<kAttentionWidth, std::remove_const_t<T>>(from, pack.values);
      return pack;
    }
#pragma unroll
    for (int i = 0; i < kAttentionWidth; ++i) {
      pack.values[i] = column + i < dims ? Widen<std::remove_const_t<T>>(from[i]) : Sum(0);
    }
    return pack;
  }
  __device__ __forceinline__ void Store(const AttentionPack<Sum>& pack, int row, int column) const {
    T* const to = data + row * stride + column;
    if (vector && column < dims) {
      cuda::Store(pack.values, to);
      return;
    }
#pragma unroll
    for (int i = 0; i < kAttentionWidth; ++i) {
      if (column + i < dims) to[i] = Narrow<T>(pack.values[i]);
    }
  }
};

// to [kRows, Sizes::kRow] = rows [first, first + count) of a head, zeros below and beside them. All
// threads of the block take part; a barrier has to follow.
template <typename Sizes, int kRows, typename T>
__device__ __forceinline__ void LoadAttentionRows(const AttentionHead<const T>& head, int first,
                                                  int count, SumOf<T>* to) {
  constexpr int kWidth = kVectorWidth<T>, kPieces = Sizes::kDims / kWidth;
  const int thread = static_cast<int>(threadIdx.x);
  if (!head.vector) {
    for (int i = thread; i < kRows * Sizes::kDims; i += Sizes::kThreads) {
      const int row = i / Sizes::kDims, column = i % Sizes::kDims;
      const bool inside = row < count && column < head.dims;
      to[row * Sizes::kRow + column] =
          inside ? Widen(head.data[(first + row) * head.stride + column]) : SumOf<T>(0);
    }
    return;
  }
#pragma unroll 4
  for (int i = thread; i < kRows * kPieces; i += Sizes::kThreads) {
    const int row = i / kPieces, column = i % kPieces * kWidth;
    SumOf<T> values[kWidth] = {};
    if (row < count && column < head.dims) {
      Load<kWidth>(head.data + (first + row) * head.stride + column, values);
    }
    Pack<SumOf<T>, kWidth> pack;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) pack.values[j] = values[j];
    StorePack(pack, to + row * Sizes::kRow + column);
  }
}

// sum[i][j] += x row i . y row j over `dims`, a multiple of kAttentionWidth. Rows in shared memory,
// x_step and y_step elements apart.
template <int kX, int kY, typename Sum>
__device__ __forceinline__ void AddAttentionDots(const Sum* x, int x_step, const Sum* y, int y_step,
                                                 int dims, Sum (&sum)[kX][kY]) {
#pragma unroll 1
  for (int d = 0; d < dims; d += kAttentionWidth) {
    AttentionPack<Sum> left[kX], right[kY];
#pragma unroll
    for (int i = 0; i < kX; ++i) left[i] = LoadPack<kAttentionWidth>(x + i * x_step + d);
#pragma unroll
    for (int j = 0; j < kY; ++j) right[j] = LoadPack<kAttentionWidth>(y + j * y_step + d);
#pragma unroll
    for (int k = 0; k < kAttentionWidth; ++k) {
#pragma unroll
      for (int i = 0; i < kX; ++i) {
#pragma unroll
        for (int j = 0; j < kY; ++j) sum[i][j] += left[i].values[k] * right[j].values[k];
      }
    }
  }
}

// A thread's rows and columns of an output.
template <typename Sizes, int kRows, typename Sum>
using AttentionSums = AttentionPack<Sum>[kRows][Sizes::kPieces];

template <typename Sizes, int kRows, typename Sum>
__device__ __forceinline__ void ClearAttentionSums(AttentionSums<Sizes, kRows, Sum>& sums) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Sizes::kPieces; ++j) sums[i][j] = {};
  }
}

// sums row i, column c += factor * x, the pieces of c beginning at x.
template <typename Sizes, int kRows, typename Sum>
__device__ __forceinline__ void AddAttentionRow(const Sum (&factors)[kRows], const Sum* x, int dims,
                                                AttentionSums<Sizes, kRows, Sum>& sums) {
#pragma unroll
  for (int j = 0; j < Sizes::kPieces; ++j) {
    if (j > 0 && j * Sizes::kStep >= dims) continue;
    const auto row = LoadPack<kAttentionWidth>(x + j * Sizes::kStep);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int k = 0; k < kAttentionWidth; ++k) {
        sums[i][j].values[k] += factors[i] * row.values[k];
      }
    }
  }
}

// sums += w x: w's rows of this thread, Sizes::kScoreRow apart, against `count` rows of x from this
// thread's first column on, in shared memory. Both are padded with zeros.
template <typename Sizes, int kRows, typename Sum>
__device__ __forceinline__ void AddAttentionProduct(const Sum* w, const Sum* x, int count, int dims,
                                                    AttentionSums<Sizes, kRows, Sum>& sums) {
  for (int k = 0; k < count; k += kAttentionWidth) {
    AttentionPack<Sum> weights[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      weights[i] = LoadPack<kAttentionWidth>(w + i * Sizes::kScoreRow + k);
    }
#pragma unroll
    for (int step = 0; step < kAttentionWidth; ++step) {
      Sum factors[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) factors[i] = weights[i].values[step];
      AddAttentionRow<Sizes, kRows>(factors, x + (k + step) * Sizes::kRow, dims, sums);
    }
  }
}

// sums += w^T x: this thread's kRows columns of w, which begin at w, against `count` rows of x.
template <typename Sizes, int kRows, typename Sum>
__device__ __forceinline__ void AddAttentionTransposed(const Sum* w, const Sum* x, int count,
                                                       int dims,
                                                       AttentionSums<Sizes, kRows, Sum>& sums) {
#pragma unroll 2
  for (int k = 0; k < count; ++k) {
    const auto weights = LoadPack<kRows>(w + k * Sizes::kScoreRow);
    AddAttentionRow<Sizes, kRows>(weights.values, x + k * Sizes::kRow, dims, sums);
  }
}

// Calls body(row, column, sums[row][piece]) for this thread's columns that the head has.
template <typename Sizes, int kRows, typename Sum, typename Body>
__device__ __forceinline__ void ForEachAttentionSum(AttentionSums<Sizes, kRows, Sum>& sums,
                                                    int dims, const Body& body) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Sizes::kPieces; ++j) {
      const int column = Sizes::Column() * kAttentionWidth + j * Sizes::kStep;
      if (column < dims) body(i, column, sums[i][j]);
    }
  }
}

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_TILE_CUH_
