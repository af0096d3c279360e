// Attention of some queries to one block of keys and values at a time, each anywhere in the
// sequence: the computation of a rank in ring attention, and of cross-attention, whose keys are
// another sequence (then shape.causal is false).
#ifndef TRIREME_KERNELS_ATTENTION_PART_HPP_
#define TRIREME_KERNELS_ATTENTION_PART_HPP_

#include "trireme/base/partition.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::kernels {

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

// Elements of scratch for either pass on the CPU, for blocks of at most `most_keys` consecutive
// keys.
std::int64_t AttentionPartScratch(const AttentionShape& shape, std::int64_t most_keys, int threads);
// The same on the stream's device; on a GPU, elements of the sums' type. dtype: of the operands;
// dropout: whether it is active in passes with a backward pass. With shape.positions this may take
// seconds on a GPU, whose library then serves blocks of ring attention (PositionsOf) of that size,
// tasks all at once or in the two calls of AttentionPartHalf.
std::int64_t AttentionPartScratch(const device::Stream& stream, const AttentionShape& shape,
                                  std::int64_t most_keys, Dtype dtype, bool dropout);

// End of the first of two calls that have about half of the tasks each: for threads of the CPU, and
// on a GPU for whole sequences if there are several.
std::int64_t AttentionPartHalf(const device::Stream& stream, const AttentionShape& shape);

// Operands of the functions below:
//   qkv, dqkv  [rows, Width()]
//   out, dout  [rows, heads * head_dim]
//   lse        [rows, heads]
//   scratch    [1, AttentionPartScratch()]

// Attention to no keys: out = 0, lse = -infinity.
void AttentionPartStart(const device::Stream& stream, const Matrix& out,
                        const Matrix& lse);

// Merges attention to `block` into out and lse, by running maximum and sum (Milakov and Gimelshein
// 2018; Liu et al. 2023, "Ring attention"). After the last block they are those of
// AttentionForward.
void AttentionPartForward(const device::Stream& stream, const AttentionShape& shape,
                          const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                          const Dropout& dropout, const Matrix& out,
                          const Matrix& lse, const Matrix& scratch);

// Clears the queries' gradient, before the first block.
void AttentionPartStartBackward(const device::Stream& stream, const AttentionShape& shape,
                                const Matrix& dqkv);

// Gradients from the final out and lse (Dao et al. 2022, appendix B): adds the part of `block` to
// the queries' columns of dqkv, and overwrites `dblock`, of the shape of block.data, with the part
// of these queries.
void AttentionPartBackward(const device::Stream& stream, const AttentionShape& shape,
                           const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                           const Dropout& dropout, const Matrix& out,
                           const Matrix& dout, const Matrix& lse,
                           const Matrix& dqkv, const Matrix& dblock,
                           const Matrix& scratch);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_ATTENTION_PART_HPP_
