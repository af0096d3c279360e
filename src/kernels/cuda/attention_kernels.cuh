// Common parts of attention's kernels: the head of a block, and the launchers.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_KERNELS_CUH_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_KERNELS_CUH_

#include <cstdint>
#include <limits>
#include <type_traits>

#include "attention_operands.cuh"
#include "attention_tile.cuh"
#include "trireme/device/cuda/launch.cuh"

namespace trireme::kernels::cuda {

// Exponentials are to base 2: scores times this are exponents.
inline constexpr double kAttentionLog2E = 1.44269504088896340736;
inline constexpr double kAttentionLn2 = 0.69314718055994530942;

inline constexpr int kAttentionMostDims = 256;  // the largest head_dim

__host__ __device__ constexpr int RoundUpDims(int dims) {
  return (dims + kAttentionWidth - 1) / kAttentionWidth * kAttentionWidth;
}

// The heads that a block of a grid works on, and the how manieth block of theirs it is.
template <typename T>
struct AttentionPlace {
  int block, sequence, head, kv_head;

  // Blocks count query heads first, then tiles.
  __device__ static AttentionPlace OfQueries(const AttentionOperands<T>& a, int block) {
    const int heads = a.tasks * a.Group(), i = a.first_task * a.Group() + block % heads;
    return {block / heads, i / a.heads, i % a.heads, i % a.heads / a.Group()};
  }
  // The same with key/value heads; the head is the first that reads it.
  __device__ static AttentionPlace OfKeys(const AttentionOperands<T>& a, int block) {
    const int i = a.first_task + block % a.tasks, kv_head = i % a.kv_heads;
    return {block / a.tasks, i / a.kv_heads, kv_head * a.Group(), kv_head};
  }

  // Rows of this head and sequence.
  __device__ AttentionHead<const T> Query(const AttentionOperands<T>& a) const {
    return OfQuery(a, a.query, a.query_stride);
  }
  __device__ AttentionHead<const T> Dout(const AttentionOperands<T>& a) const {
    return OfQuery(a, a.dout, a.dout_stride);
  }
  __device__ AttentionHead<T> Out(const AttentionOperands<T>& a) const {
    return OfQuery(a, a.out, a.out_stride);
  }
  __device__ AttentionHead<T> Dquery(const AttentionOperands<T>& a) const {
    return OfQuery(a, a.dquery, a.dquery_stride);
  }
  // Null if there is none.
  __device__ AttentionHead<SumOf<T>> Exact(const AttentionOperands<T>& a) const {
    if (a.exact == nullptr) return {nullptr, 0, 0, false};
    return OfQuery(a, a.exact, std::int64_t{a.heads} * a.head_dim);
  }
  __device__ AttentionHead<const T> Key(const AttentionOperands<T>& a) const {
    return OfKey(a, a.key, a.key_stride);
  }
  __device__ AttentionHead<const T> Value(const AttentionOperands<T>& a) const {
    return OfKey(a, a.value, a.key_stride);
  }
  __device__ AttentionHead<T> Dkey(const AttentionOperands<T>& a) const {
    return OfKey(a, a.dkey, a.dkey_stride);
  }
  __device__ AttentionHead<T> Dvalue(const AttentionOperands<T>& a) const {
    return OfKey(a, a.dvalue, a.dkey_stride);
  }
  __device__ SumOf<T>* Lse(const AttentionOperands<T>& a, int row) const {
    return a.lse + a.QueryRow(sequence, row) * a.lse_stride + head;
  }
  __device__ SumOf<T>* Inner(const AttentionOperands<T>& a, int row) const {
    return a.inner + a.QueryRow(sequence, row) * a.heads + head;
  }

 private:
  template <typename U>
  __device__ AttentionHead<U> OfQuery(const AttentionOperands<T>& a, U* data,
                                      std::int64_t stride) const {
    return {data + a.QueryRow(sequence, 0) * stride + head * a.head_dim, stride, a.head_dim,
            a.vector};
  }
  template <typename U>
  __device__ AttentionHead<U> OfKey(const AttentionOperands<T>& a, U* data,
                                    std::int64_t stride) const {
    return {data + a.KeyRow(sequence, 0) * stride + kv_head * a.head_dim, stride, a.head_dim,
            a.vector};
  }
};

// A piece of a row of `stored`, each value as it was before rounding if `exact` holds that.
template <typename T>
__device__ __forceinline__ AttentionPack<SumOf<T>> LoadExact(const AttentionHead<T>& stored,
                                                             const AttentionHead<SumOf<T>>& exact,
                                                             int row, int column) {
  AttentionPack<SumOf<T>> pack = stored.Load(row, column);
  if constexpr (!std::is_same_v<T, SumOf<T>>) {
    if (exact.data != nullptr) {
      const AttentionPack<SumOf<T>> kept = exact.Load(row, column);
#pragma unroll
      for (int i = 0; i < kAttentionWidth; ++i) {
        const bool same = Widen(Narrow<T>(kept.values[i])) == pack.values[i];
        // A sum begins at zero, before `exact` has been written.
        if (same && pack.values[i] != 0) pack.values[i] = kept.values[i];
      }
    }
  }
  return pack;
}

// Calls body(std::integral_constant<int, dims>{}) with the number of columns in shared memory that
// serves heads of `head_dim`.
template <typename Body>
void WithAttentionDims(int head_dim, const Body& body) {
  if (head_dim <= 32) {
    body(std::integral_constant<int, 32>{});
  } else if (head_dim <= 64) {
    body(std::integral_constant<int, 64>{});
  } else if (head_dim <= 128) {
    body(std::integral_constant<int, 128>{});
  } else {
    body(std::integral_constant<int, kAttentionMostDims>{});
  }
}

// Bytes of shared memory that a block of the pass takes, at most. For T float, double and Bf16.
template <typename T>
int AttentionForwardBytes(int head_dim);
template <typename T>
int AttentionBackwardBytes(int head_dim);

// Whether queries and keys are a tile each: the backward pass is one kernel then.
template <typename T>
bool AttentionIsOneTile(const AttentionOperands<T>& a);

// Launchers, for T float, double and Bf16. Queued; nothing if there is nothing to write.
template <typename T>
void LaunchAttentionInner(cudaStream_t queue, const AttentionOperands<T>& a);  // a.inner
template <typename T>
void LaunchAttentionForward(cudaStream_t queue, const AttentionOperands<T>& a);
template <typename T>
void LaunchAttentionBackward(cudaStream_t queue, const AttentionOperands<T>& a);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_KERNELS_CUH_
