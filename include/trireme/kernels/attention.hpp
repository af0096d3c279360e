// Multi-head attention with grouped queries, causal or not: over whole sequences, over one block of
// keys at a time (ring attention), and over a cache (generation). Rotary positions.
#pragma once

#include <cmath>
#include <span>

#include "trireme/base/partition.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::kernels {

// Query head h reads key/value head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t sequences = 0, length = 0;  // rows = sequences * length, sequence by sequence;
                                           // length: rows of a sequence on this rank
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t first_head = 0;  // global number of head 0, for dropout's coordinates
  bool causal = true;           // false: a query sees all keys of its sequence
  Positions positions = {};     // of the rows in their sequence, for Rope and AttentionPart*
  // [sequences, length] in the stream's memory: for each row, the position in the sequence of the
  // first token of its document (never decreases along a sequence); null: each sequence is one
  // document. A query sees only keys of its own document, and Rope counts positions from its begin.
  const std::int32_t* begins = nullptr;
  // [sequences] in the stream's memory: number of keys of each sequence. Later positions are
  // padding: they are not attended to or read, and their gradients become 0. Null: no padding.
  const std::int32_t* key_lengths = nullptr;
  double divisor = 0;  // of the scores; 0: sqrt(head_dim)

  std::int64_t Width() const { return (heads + 2 * kv_heads) * head_dim; }  // columns of qkv
  double Divisor() const {
    return divisor > 0 ? divisor : std::sqrt(static_cast<double>(head_dim));
  }
};

// AttentionForward and AttentionBackward attend within whole sequences and do not read
// shape.positions; Rope does. On the CPU all products are our own, in the operands' type (fp32 on a
// bf16 stream). An element of a result depends on its sequence and head alone, in one fixed order.

// Number of elements of scratch for both passes, enough for all shapes up to this one (shapes with
// begins only if this one has them). On the CPU: tiles for each thread, no larger for long
// sequences; on a GPU: elements of the sums' type. dtype: the operands' type; dropout: whether a
// pass that has a backward pass will use it. On a GPU the first call for a shape may take seconds;
// for a planned GPU the result is for our own kernels, without cuDNN.
extern const Kernel<std::int64_t(const AttentionShape& shape, Dtype dtype, bool dropout)>
    AttentionScratch;

// out = dropout(softmax(q k^T / shape.Divisor())) v, per head.
//   qkv      [rows, Width()], all queries, then keys, then values
//   out      [rows, heads * head_dim], overwritten
//   lse      [rows, heads], overwritten: log-sum-exp of the scaled scores, for the backward pass
//   scratch  [1, AttentionScratch()]
// lse, scratch and Rope's table have the sums' type (SumTypeOf); all other operands share one type.
// Coordinates of dropout: feature = key position, row = query position, site = head (dropout.site
// is not read).
extern const Kernel<void(const AttentionShape& shape, const Matrix& qkv, const Dropout& dropout,
                         const Matrix& out, const Matrix& lse, const Matrix& scratch)>
    AttentionForward;

// Overwrites dqkv (shape of qkv), given dout (shape of out) and the out and lse that
// AttentionForward wrote. Scores are recomputed, dropout masks regenerated.
extern const Kernel<void(const AttentionShape& shape, const Matrix& qkv, const Dropout& dropout,
                         const Matrix& out, const Matrix& dout, const Matrix& lse,
                         const Matrix& dqkv, const Matrix& scratch)>
    AttentionBackward;

// Rotates the query and key heads of qkv in place (Su et al. 2021): the pair (i, i + head_dim / 2)
// of each head by the angle t f_i, with t the row's position in its document, times the table's
// magnitude. table: from RopeTable. `inverse` rotates by -t f_i with the same magnitude: the
// transpose, which the gradient needs.
extern const Kernel<void(const AttentionShape& shape, const Matrix& table, bool inverse,
                         const Matrix& qkv)>
    Rope;
// Fills `table`, in host memory: [positions, head_dim], cosines then sines of position * frequency,
// times `magnitude`, for every position that occurs. frequencies: [head_dim / 2], radians.
void RopeTable(std::span<const double> frequencies, double magnitude, const Matrix& table);
// The same with f_i = theta^(-2 i / head_dim) and magnitude 1.
void RopeTable(double theta, const Matrix& table);

// Attention of some queries to one block of keys and values at a time, each anywhere in the
// sequence: what a rank computes in ring attention. Cross-attention uses it too, with the keys of
// another sequence and shape.causal = false.

// Keys and values of all sequences at `positions`.
struct KeyValueBlock {
  Positions positions;
  Matrix data;  // [sequences * positions.Count(), 2 kv_heads head_dim], keys then values, any
                // stride: a packed copy, or these columns of a qkv
};

// The queries are shape.length rows of each sequence, at shape.positions. The functions below read
// only the query columns of qkv and write only those of dqkv. Dropout has the coordinates, and so
// the masks, of AttentionForward.

// Number of tasks. A task is one key/value head of one sequence, with its query heads; tasks are
// numbered sequence by sequence. A call computes a range of tasks, so that the caller can look
// after transfers in between; the calls must cover all tasks.
inline std::int64_t AttentionPartTasks(const AttentionShape& shape) {
  return shape.sequences * shape.kv_heads;
}

// Number of elements of scratch for either pass, for blocks of at most `most_keys` consecutive
// keys; on a GPU elements of the sums' type. dtype: the operands' type; dropout: whether a pass
// that has a backward pass will use it. On a GPU, with shape.positions set, this may take seconds:
// cuDNN is then prepared for blocks of ring attention (PositionsOf) of that size, called for all
// tasks or for the halves of AttentionPartHalf.
extern const Kernel<std::int64_t(const AttentionShape& shape, std::int64_t most_keys, Dtype dtype,
                                 bool dropout)>
    AttentionPartScratch;

// Where to split the tasks into two calls of about equal work: for the CPU's threads, and on a GPU
// between two sequences if there are several.
std::int64_t AttentionPartHalf(const device::Stream& stream, const AttentionShape& shape);

// Operands of the functions below:
//   qkv, dqkv  [rows, Width()]
//   out, dout  [rows, heads * head_dim]
//   lse        [rows, heads]
//   scratch    [1, AttentionPartScratch()]; must stay untouched between the blocks of a pass,
//              since on a GPU in bf16 it holds the sum before rounding

// Result of attention to no keys: out = 0, lse = -infinity.
extern const Kernel<void(const Matrix& out, const Matrix& lse)> AttentionPartStart;

// Merges attention to `block` into out and lse by a running maximum and sum (Milakov and Gimelshein
// 2018; Liu et al. 2023, "Ring attention"). After the last block they equal AttentionForward's.
extern const Kernel<void(const AttentionShape& shape, const Part& tasks, const Matrix& qkv,
                         const KeyValueBlock& block, const Dropout& dropout, const Matrix& out,
                         const Matrix& lse, const Matrix& scratch)>
    AttentionPartForward;

// Clears the queries' gradient, before the first block.
extern const Kernel<void(const AttentionShape& shape, const Matrix& dqkv, const Matrix& scratch)>
    AttentionPartStartBackward;

// Backward pass of one block, given the final out and lse (Dao et al. 2022, appendix B): adds to
// the query columns of dqkv what `block` contributes, and overwrites `dblock` (shape of block.data)
// with what these queries contribute.
extern const Kernel<void(const AttentionShape& shape, const Part& tasks, const Matrix& qkv,
                         const KeyValueBlock& block, const Dropout& dropout, const Matrix& out,
                         const Matrix& dout, const Matrix& lse, const Matrix& dqkv,
                         const Matrix& dblock, const Matrix& scratch)>
    AttentionPartBackward;

// Attention of few queries to keys and values that earlier passes left in a cache: generating a
// token does not recompute the tokens before it.

// Keys and values of one layer: `slots` sequences of up to `positions` positions each. Each back
// end orders the elements of a slot in its own way.
struct KeyValueCache {
  void* data = nullptr;  // [slots, KeyValueElements()], zeroed before the first use
  Dtype dtype = Dtype::kFloat32;
  std::int64_t slots = 0, positions = 0;
};

// Where a pass's sequences lie in the cache. Arrays: [shape.sequences], in the stream's memory.
struct CachedRows {
  const std::int32_t* slots = nullptr;   // slot of each sequence; all different
  const std::int32_t* firsts = nullptr;  // position of each sequence's first row
};

// Number of elements of a slot.
extern const Kernel<std::int64_t(const AttentionShape& shape, std::int64_t positions)>
    KeyValueElements;

// Copies key_values ([rows, 2 kv_heads head_dim], keys then values, any stride) into the cache at
// the positions of its rows. Later positions of these sequences count as empty afterwards.
extern const Kernel<void(const AttentionShape& shape, const Matrix& key_values,
                         const CachedRows& rows, const KeyValueCache& cache)>
    KeepKeyValues;

// What CopyKeyValues copies: the first `positions` positions of slot `from`, to slot `to`.
struct SlotCopy {
  std::int32_t from = 0, to = 0;
  std::int64_t positions = 0;
};
// Later positions of slot `to` count as empty afterwards. shape: heads and sizes only.
extern const Kernel<void(const AttentionShape& shape, const SlotCopy& copy,
                         const KeyValueCache& cache)>
    CopyKeyValues;

// out = softmax(q k^T / shape.Divisor()) v: each query attends to the cached positions up to and
// including its own, which KeepKeyValues must have stored before. qkv: [rows, shape.Width()], of
// which only the queries are read, or a matrix of the queries alone; out: [rows, heads * head_dim],
// overwritten. On the CPU the bits are those of AttentionForward on the whole sequence.
// shape.causal, positions, begins and key_lengths are not read.
extern const Kernel<void(const AttentionShape& shape, const Matrix& qkv, const CachedRows& rows,
                         const KeyValueCache& cache, const Matrix& out)>
    CachedAttention;

}  // namespace trireme::kernels
