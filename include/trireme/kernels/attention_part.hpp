// Attention of some queries to one block of keys and values at a time, wherever either lies in the
// sequence: what a rank computes in ring attention.
#ifndef TRIREME_KERNELS_ATTENTION_PART_HPP_
#define TRIREME_KERNELS_ATTENTION_PART_HPP_

#include "trireme/base/partition.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::kernels {

// Keys and values of `sequences` at `positions`: [sequences * positions.Count(), 2 kv_heads
// head_dim], keys then values, of any stride: those columns of a qkv as well as a packed copy.
struct KeyValueBlock {
  Positions positions;
  tensor::Matrix data;
};

// In all that follows shape.length rows of each sequence, at shape.positions, are the queries; qkv
// is read (dqkv written) in the queries' columns only. Dropout's features are the keys' positions,
// its rows the queries', its site the head, so that masks are those of AttentionForward.

// A task is a sequence and a key/value head with its query heads, in this order. A call may do some
// of the tasks, all in the end, so that the caller can attend to transfers in between.
inline std::int64_t AttentionPartTasks(const AttentionShape& shape) {
  return shape.sequences * shape.kv_heads;
}

// Elements of scratch for either pass, for blocks of at most `most_keys` consecutive keys.
std::int64_t AttentionPartScratch(const AttentionShape& shape, std::int64_t most_keys, int threads);
// The same for wherever the stream computes; of a GPU, elements of the sums' type.
std::int64_t AttentionPartScratch(const device::Stream& stream, const AttentionShape& shape,
                                  std::int64_t most_keys);

// What attention to no keys gives: out = 0, lse = -infinity.
void AttentionPartStart(const device::Stream& stream, const tensor::Matrix& out,
                        const tensor::Matrix& lse);

// Merges attention to `block` into out and lse, whose blocks so far they hold, by running maximum
// and sum (Milakov and Gimelshein 2018; Liu et al. 2023, "Ring attention"). Behind the last block
// they are as AttentionForward has them.
void AttentionPartForward(const device::Stream& stream, const AttentionShape& shape,
                          const Part& tasks, const tensor::Matrix& qkv, const KeyValueBlock& block,
                          const Dropout& dropout, const tensor::Matrix& out,
                          const tensor::Matrix& lse, const tensor::Matrix& scratch);

// The queries' gradient before the first block: 0.
void AttentionPartStartBackward(const device::Stream& stream, const AttentionShape& shape,
                                const tensor::Matrix& dqkv);

// From the final out and lse: adds to the queries' columns of dqkv what `block` gives, and
// overwrites `dblock`, as block.data, with what these queries give (Dao et al. 2022, appendix B).
void AttentionPartBackward(const device::Stream& stream, const AttentionShape& shape,
                           const Part& tasks, const tensor::Matrix& qkv, const KeyValueBlock& block,
                           const Dropout& dropout, const tensor::Matrix& out,
                           const tensor::Matrix& dout, const tensor::Matrix& lse,
                           const tensor::Matrix& dqkv, const tensor::Matrix& dblock,
                           const tensor::Matrix& scratch);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_ATTENTION_PART_HPP_
