// Attention of few queries to keys and values that earlier passes left in a cache: text is written
// token by token without computing the ones before again.
#ifndef TRIREME_KERNELS_CACHED_ATTENTION_HPP_
#define TRIREME_KERNELS_CACHED_ATTENTION_HPP_

#include "trireme/kernels/attention.hpp"

namespace trireme::kernels {

// Keys and values of one layer: `slots` sequences of up to `positions` positions. The order of
// elements within a slot is the back end's.
struct KeyValueCache {
  void* data = nullptr;  // [slots, KeyValueElements()], zeroed before the first use
  Dtype dtype = Dtype::kFloat32;
  std::int64_t slots = 0, positions = 0;
};

// Places of a pass' sequences in the cache. Arrays in the stream's memory, [shape.sequences].
struct CachedRows {
  const std::int32_t* slots = nullptr;   // all different
  const std::int32_t* firsts = nullptr;  // position of each sequence's first row
};

// Elements of a slot.
std::int64_t KeyValueElements(const device::Stream& stream, const AttentionShape& shape,
                              std::int64_t positions);

// Copies key_values, [rows, 2 kv_heads head_dim], keys then values, of any stride, to the cache,
// over what lies at their positions. Later positions of these sequences count as empty from now on.
void KeepKeyValues(const device::Stream& stream, const AttentionShape& shape,
                   const Matrix& key_values, const CachedRows& rows,
                   const KeyValueCache& cache);

// Copy of what a slot keeps at its first `positions` positions to another slot.
struct SlotCopy {
  std::int32_t from = 0, to = 0;
  std::int64_t positions = 0;
};
// Later positions of the slot that is written count as empty from now on. shape: heads and sizes.
void CopyKeyValues(const device::Stream& stream, const AttentionShape& shape, const SlotCopy& copy,
                   const KeyValueCache& cache);

// out = softmax(q k^T / sqrt(head_dim)) v, each query against the positions up to its own, all of
// which were kept before (its own, too). qkv: [rows, shape.Width()], of which the queries are read,
// or the queries alone; out: [rows, heads * head_dim], overwritten. On the CPU its bits are those
// of AttentionForward on the whole sequence. shape.causal, positions, begins and key_lengths are
// not read.
void CachedAttention(const device::Stream& stream, const AttentionShape& shape,
                     const Matrix& qkv, const CachedRows& rows, const KeyValueCache& cache,
                     const Matrix& out);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CACHED_ATTENTION_HPP_
