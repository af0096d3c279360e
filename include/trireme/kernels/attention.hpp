// Multi-head attention with grouped queries over whole sequences, causal or not, in tiles of
// queries and keys, and rotary positions.
#ifndef TRIREME_KERNELS_ATTENTION_HPP_
#define TRIREME_KERNELS_ATTENTION_HPP_

#include <span>

#include "trireme/base/positions.hpp"
#include "trireme/kernels/dropout.hpp"

namespace trireme::kernels {

// Query head h reads key/value head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t sequences = 0, length = 0;  // rows = sequences * length, sequence-major; length:
                                           // rows of each sequence on this rank
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t first_head = 0;  // global number of head 0, for dropout's coordinates
  bool causal = true;           // false: a query sees all keys of its sequence
  Positions positions = {};     // of the rows in their sequence (Rope; attention_part.hpp)
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

// Elements of scratch for both passes on the CPU with this many threads: tiles, whose size does not
// grow with long sequences.
std::int64_t AttentionScratch(const AttentionShape& shape, int threads);
// Elements of scratch for both passes on the stream's device; on a GPU, of the sums' type. dtype:
// of the operands; dropout: whether it is active in passes with a backward pass. The passes may be
// called with this type and with shapes up to this one, with begins if it has begins. On a GPU the
// first call for a shape may take seconds; for a planned GPU the answer is that of our own kernels,
// without cuDNN.
std::int64_t AttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                              Dtype dtype, bool dropout);

// out = dropout(softmax(q k^T / sqrt(head_dim))) v, per head.
//   qkv      [rows, Width()], all queries, then keys, then values
//   out      [rows, heads * head_dim], overwritten
//   lse      [rows, heads], overwritten: log-sum-exp of the scaled scores, for the backward pass
//   scratch  [1, AttentionScratch()]
// lse, scratch and Rope's table are of the sums' type (SumTypeOf), the others of one type.
// Dropout's features are key positions, its rows query positions, its site the head (dropout.site
// is not read).
void AttentionForward(const device::Stream& stream, const AttentionShape& shape,
                      const Matrix& qkv, const Dropout& dropout, const Matrix& out,
                      const Matrix& lse, const Matrix& scratch);

// dqkv (of the shape of qkv, overwritten) from dout (of the shape of out). out, lse: of
// AttentionForward. Scores are recomputed, masks regenerated.
void AttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                       const Matrix& qkv, const Dropout& dropout, const Matrix& out,
                       const Matrix& dout, const Matrix& lse,
                       const Matrix& dqkv, const Matrix& scratch);

// Rotates the query and key heads of qkv in place (Su et al. 2021): the pair (i, i + head_dim / 2)
// of each head by angle t f_i, t the row's position in its document, and multiplies it by the
// table's magnitude. table: of RopeTable. `inverse` turns the other way and multiplies alike: the
// transpose, which is the gradient.
void Rope(const device::Stream& stream, const AttentionShape& shape, const Matrix& table,
          bool inverse, const Matrix& qkv);
// Fills `table`, in host memory: [more than the last position, head_dim], cosines then sines of
// position times frequency, both times `magnitude`. frequencies: [head_dim / 2], radians.
void RopeTable(std::span<const double> frequencies, double magnitude, const Matrix& table);
// The same with f_i = theta^(-2 i / head_dim) and magnitude 1.
void RopeTable(double theta, const Matrix& table);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_ATTENTION_HPP_
