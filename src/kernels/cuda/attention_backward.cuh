// Common parts of the two kernels of attention's backward pass (Dao et al. 2022, appendix B). With
// weights P = 2^(s - lse), their dropped form D(P), dO and inner = rowsum(dO * O): dV = D(P)^T dO;
// dP = D(dO V^T); dS = P (dP - inner); dQ = scale dS K; dK = scale dS^T Q. P and dS exist for a
// tile at a time.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_BACKWARD_CUH_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_BACKWARD_CUH_

#include "attention_kernels.cuh"

namespace trireme::kernels::cuda {

// Shared memory of a block.
template <typename Sizes, typename Sum>
struct AttentionBackwardShared {
  using Mask = AttentionMask<Sizes::kKeys>;
  Sum* queries;         // [kQueries, kRow]
  Sum* douts;           // [kQueries, kRow]
  Sum* keys;            // [kKeys, kRow]
  Sum* values;          // [kKeys, kRow]
  Sum* slopes;          // [kQueries, kScoreRow]: scale dS
  Sum* weights;         // [kQueries, kScoreRow]: D(P); not of the kernel of the queries
  unsigned char* kept;  // [kQueries, Mask::kRow]

  static constexpr int kRows = 2 * (Sizes::kQueries + Sizes::kKeys) * Sizes::kRow;
  static constexpr int kScores = Sizes::kQueries * Sizes::kScoreRow;
  static constexpr int Bytes(bool with_weights) {
    return (kRows + (with_weights ? 2 : 1) * kScores) * static_cast<int>(sizeof(Sum)) +
           Sizes::kQueries * Mask::kRow;
  }

  __device__ AttentionBackwardShared(Sum* memory, bool with_weights)
      : queries(memory),
        douts(queries + Sizes::kQueries * Sizes::kRow),
        keys(douts + Sizes::kQueries * Sizes::kRow),
        values(keys + Sizes::kKeys * Sizes::kRow),
        slopes(memory + kRows),
        weights(with_weights ? slopes + kScores : nullptr),
        kept(reinterpret_cast<unsigned char*>(slopes + (with_weights ? 2 : 1) * kScores)) {}
};

// Of this thread's queries.
template <typename Sizes, typename Sum>
struct AttentionStatistics {
  Sum lse[Sizes::kMyQueries];  // to base 2
  Sum inner[Sizes::kMyQueries];
  AttentionBegins<Sizes> begins;

  template <typename T>
  __device__ void Load(const AttentionOperands<T>& a, const AttentionPlace<T>& at,
                       const AttentionTile& queries, bool with_inner) {
    begins.Load(a, at.sequence, queries);
#pragma unroll
    for (int i = 0; i < Sizes::kMyQueries; ++i) {
      const int row = Sizes::Row() * Sizes::kMyQueries + i;
      const bool inside = row < queries.count;
      lse[i] = inside ? *at.Lse(a, queries.row + row) * static_cast<Sum>(kAttentionLog2E) : Sum(0);
      inner[i] = inside && with_inner ? *at.Inner(a, queries.row + row) : Sum(0);
    }
  }
};

// Slopes, and weights where there is room for them, of a tile whose operands lie in shared memory:
// zero if a key is not seen.
template <typename Sizes, typename T>
__device__ __forceinline__ void AttentionSlopes(
    const AttentionOperands<T>& a, const AttentionTile& queries, const AttentionTile& keys,
    const AttentionStatistics<Sizes, SumOf<T>>& statistics,
    const AttentionBackwardShared<Sizes, SumOf<T>>& shared) {
  using Sum = SumOf<T>;
  const int dims = RoundUpDims(a.head_dim), first_row = Sizes::Row() * Sizes::kMyQueries;
  Sum score[Sizes::kMyQueries][Sizes::kMyKeys] = {}, slope[Sizes::kMyQueries][Sizes::kMyKeys] = {};
  AddAttentionDots(shared.queries + first_row * Sizes::kRow, Sizes::kRow,
                   shared.keys + Sizes::Column() * Sizes::kRow, Sizes::kColumnThreads * Sizes::kRow,
                   dims, score);
  AddAttentionDots(shared.douts + first_row * Sizes::kRow, Sizes::kRow,
                   shared.values + Sizes::Column() * Sizes::kRow,
                   Sizes::kColumnThreads * Sizes::kRow, dims, slope);
  const Sum exponents = a.scale * static_cast<Sum>(kAttentionLog2E);
#pragma unroll
  for (int i = 0; i < Sizes::kMyQueries; ++i) {
    const int row = first_row + i;
    const int visible = row < queries.count ? AttentionVisible(a, queries.position + row, keys) : 0;
#pragma unroll
    for (int j = 0; j < Sizes::kMyKeys; ++j) {
      const int column = Sizes::Column() + j * Sizes::kColumnThreads;
      const bool seen = column < visible && statistics.begins.Allow(i, keys, column);
      const Sum weight = seen ? exp2(score[i][j] * exponents - statistics.lse[i]) : Sum(0);
      Sum factor = Sum(1);
      if (a.threshold > 0 && seen) {
        using Mask = typename AttentionBackwardShared<Sizes, Sum>::Mask;
        factor = Mask::Kept(shared.kept, row, keys, column) ? a.kept_scale : Sum(0);
      }
      const int place = row * Sizes::kScoreRow + column;
      shared.slopes[place] =
          seen ? weight * (factor * slope[i][j] - statistics.inner[i]) * a.scale : Sum(0);
      if (shared.weights != nullptr) shared.weights[place] = factor * weight;
    }
  }
}

// dquery, after a.inner (attention_backward_queries.cu).
template <typename T>
void LaunchAttentionQueryGradient(cudaStream_t queue, const AttentionOperands<T>& a);
// Tiles by head_dim, and by what shared memory holds.
template <typename Sum, int kDims>
struct AttentionBackwardSizes;
template <typename Sum>
struct AttentionBackwardSizes<Sum, 32> : AttentionSizes<8, 8, 4, 4, 32> {};
template <>
struct AttentionBackwardSizes<float, 64> : AttentionSizes<16, 16, 4, 4, 64> {};
template <>
struct AttentionBackwardSizes<double, 64> : AttentionSizes<8, 16, 4, 2, 64> {};
template <typename Sum>
struct AttentionBackwardSizes<Sum, 128> : AttentionSizes<8, 16, 4, 2, 128> {};
template <>
struct AttentionBackwardSizes<float, 256> : AttentionSizes<8, 16, 4, 2, 256> {};
template <>
struct AttentionBackwardSizes<double, 256> : AttentionSizes<8, 16, 2, 1, 256> {};

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_BACKWARD_CUH_
