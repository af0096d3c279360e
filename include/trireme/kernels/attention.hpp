// Multi-head attention with grouped queries over whole sequences, causal or not, in tiles of
// queries and keys, and rotary positions.
#pragma once

#include <span>

#include "trireme/base/partition.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::kernels {

// Query head h reads key/value head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t sequences = 0, length = 0;  // rows = sequences * length, sequence-major; length:
                                           // rows of each sequence on this rank
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t first_head = 0;  // global number of head 0, for dropout's coordinates
  bool causal = true;           // false: a query sees all keys of its sequence
  Positions positions = {};     // of the rows in their sequence (Rope, AttentionPartForward)
  // [sequences, length] in the stream's memory: position in its sequence of the first token of each
  // row's document, which does not fall along a sequence; null: a sequence is one document. A query
  // sees keys of its own document only, and Rope counts positions from there.
  const std::int32_t* begins = nullptr;
  // [sequences] in the stream's memory: only keys at positions below a sequence's number are seen,
  // the others are padding, whose memory is not read (its gradients become 0); null: all are there.
  const std::int32_t* key_lengths = nullptr;

  std::int64_t Width() const { return (heads + 2 * kv_heads) * head_dim; }  // columns of qkv
};

// AttentionForward and AttentionBackward attend within whole sequences: shape.positions is not
// read, except by Rope. On the CPU all products are our own, in the type of the operands (fp32 on a
// bf16 stream), and each element of a result follows from its sequence and head alone, by one order
// of operations.

// Elements of scratch for both passes: on the CPU tiles for each thread, whose size does not grow
// with long sequences; on a GPU elements of the sums' type. dtype: of the operands; dropout:
// whether it is active in passes with a backward pass. The passes may be called with this type and
// with shapes up to this one, with begins if it has begins. On a GPU the first call for a shape may
// take seconds; for a planned GPU the answer is that of our own kernels, without cuDNN.
extern const Kernel<std::int64_t(const AttentionShape& shape, Dtype dtype, bool dropout)>
    AttentionScratch;

// out = dropout(softmax(q k^T / sqrt(head_dim))) v, per head.
//   qkv      [rows, Width()], all queries, then keys, then values
//   out      [rows, heads * head_dim], overwritten
//   lse      [rows, heads], overwritten: log-sum-exp of the scaled scores, for the backward pass
//   scratch  [1, AttentionScratch()]
// lse, scratch and Rope's table are of the sums' type (SumTypeOf), the others of one type.
// Dropout's features are key positions, its rows query positions, its site the head (dropout.site
// is not read).
extern const Kernel<void(const AttentionShape& shape, const Matrix& qkv, const Dropout& dropout,
                         const Matrix& out, const Matrix& lse, const Matrix& scratch)>
    AttentionForward;

// dqkv (of the shape of qkv, overwritten) from dout (of the shape of out). out, lse: of
// AttentionForward. Scores are recomputed, masks regenerated.
extern const Kernel<void(const AttentionShape& shape, const Matrix& qkv, const Dropout& dropout,
                         const Matrix& out, const Matrix& dout, const Matrix& lse,
                         const Matrix& dqkv, const Matrix& scratch)>
    AttentionBackward;

// Rotates the query and key heads of qkv in place (Su et al. 2021): the pair (i, i + head_dim / 2)
// of each head by angle t f_i, t the row's position in its document, and multiplies it by the
// table's magnitude. table: of RopeTable. `inverse` turns the other way and multiplies alike: the
// transpose, which is the gradient.
extern const Kernel<void(const AttentionShape& shape, const Matrix& table, bool inverse,
                         const Matrix& qkv)>
    Rope;
// Fills `table`, in host memory: [more than the last position, head_dim], cosines then sines of
// position times frequency, both times `magnitude`. frequencies: [head_dim / 2], radians.
void RopeTable(std::span<const double> frequencies, double magnitude, const Matrix& table);
// The same with f_i = theta^(-2 i / head_dim) and magnitude 1.
void RopeTable(double theta, const Matrix& table);

// Attention of some queries to one block of keys and values at a time, each anywhere in the
// sequence: the computation of a rank in ring attention, and of cross-attention, whose keys are
// another sequence (then shape.causal is false).

// Keys and values of all sequences at `positions`.
struct KeyValueBlock {
  Positions positions;
  Matrix data;  // [sequences * positions.Count(), 2 kv_heads head_dim], keys then values,
                // of any stride: a packed copy, or those columns of a qkv
};

// Queries are shape.length rows of each sequence, at shape.positions; of qkv (dqkv) the functions
// below read (write) the columns of the queries only. Dropout's features are the keys' positions,
// its rows the queries', its site the head: masks are those of AttentionForward.

// Number of tasks. A task is one sequence and one key/value head with its query heads, numbered in
// this order. A call works on some of the tasks, so that the caller can attend to transfers in
// between; calls for all tasks make a whole.
inline std::int64_t AttentionPartTasks(const AttentionShape& shape) {
  return shape.sequences * shape.kv_heads;
}

// Elements of scratch for either pass, for blocks of at most `most_keys` consecutive keys; on a GPU
// elements of the sums' type. dtype: of the operands;
// dropout: whether it is active in passes with a backward pass. With shape.positions this may take
// seconds on a GPU, whose library then serves blocks of ring attention (PositionsOf) of that size,
// tasks all at once or in the two calls of AttentionPartHalf.
extern const Kernel<std::int64_t(const AttentionShape& shape, std::int64_t most_keys, Dtype dtype,
                                 bool dropout)>
    AttentionPartScratch;

// End of the first of two calls that have about half of the tasks each: for threads of the CPU, and
// on a GPU for whole sequences if there are several.
std::int64_t AttentionPartHalf(const device::Stream& stream, const AttentionShape& shape);

// Operands of the functions below:
//   qkv, dqkv  [rows, Width()]
//   out, dout  [rows, heads * head_dim]
//   lse        [rows, heads]
//   scratch    [1, AttentionPartScratch()]; stays as it is from one block of a pass to the next: on
//              a GPU in bf16 it holds the sum before it is rounded

// Attention to no keys: out = 0, lse = -infinity.
extern const Kernel<void(const Matrix& out, const Matrix& lse)> AttentionPartStart;

// Merges attention to `block` into out and lse, by running maximum and sum (Milakov and Gimelshein
// 2018; Liu et al. 2023, "Ring attention"). After the last block they are those of
// AttentionForward.
extern const Kernel<void(const AttentionShape& shape, const Part& tasks, const Matrix& qkv,
                         const KeyValueBlock& block, const Dropout& dropout, const Matrix& out,
                         const Matrix& lse, const Matrix& scratch)>
    AttentionPartForward;

// Clears the queries' gradient, before the first block.
extern const Kernel<void(const AttentionShape& shape, const Matrix& dqkv, const Matrix& scratch)>
    AttentionPartStartBackward;

// Gradients from the final out and lse (Dao et al. 2022, appendix B): adds the part of `block` to
// the queries' columns of dqkv, and overwrites `dblock`, of the shape of block.data, with the part
// of these queries.
extern const Kernel<void(const AttentionShape& shape, const Part& tasks, const Matrix& qkv,
                         const KeyValueBlock& block, const Dropout& dropout, const Matrix& out,
                         const Matrix& dout, const Matrix& lse, const Matrix& dqkv,
                         const Matrix& dblock, const Matrix& scratch)>
    AttentionPartBackward;

// Attention of few queries to keys and values that earlier passes left in a cache: text is written
// token by token without computing the ones before again.

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
extern const Kernel<std::int64_t(const AttentionShape& shape, std::int64_t positions)>
    KeyValueElements;

// Copies key_values, [rows, 2 kv_heads head_dim], keys then values, of any stride, to the cache,
// over what lies at their positions. Later positions of these sequences count as empty from now on.
extern const Kernel<void(const AttentionShape& shape, const Matrix& key_values,
                         const CachedRows& rows, const KeyValueCache& cache)>
    KeepKeyValues;

// Copy of what a slot keeps at its first `positions` positions to another slot.
struct SlotCopy {
  std::int32_t from = 0, to = 0;
  std::int64_t positions = 0;
};
// Later positions of the slot that is written count as empty from now on. shape: heads and sizes.
extern const Kernel<void(const AttentionShape& shape, const SlotCopy& copy,
                         const KeyValueCache& cache)>
    CopyKeyValues;

// out = softmax(q k^T / sqrt(head_dim)) v, each query against the positions up to its own, all of
// which were kept before (its own, too). qkv: [rows, shape.Width()], of which the queries are read,
// or the queries alone; out: [rows, heads * head_dim], overwritten. On the CPU its bits are those
// of AttentionForward on the whole sequence. shape.causal, positions, begins and key_lengths are
// not read.
extern const Kernel<void(const AttentionShape& shape, const Matrix& qkv, const CachedRows& rows,
                         const KeyValueCache& cache, const Matrix& out)>
    CachedAttention;

}  // namespace trireme::kernels
