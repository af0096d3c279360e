// Attention over sequences that the ranks of a context group hold in blocks: keys and values travel
// around a ring while each rank's queries attend to the current block (Liu et al. 2023).
#pragma once

#include <cstdint>

#include "trireme/base/partition.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::parallel {

// With n_r positions on rank r of C, B sequences, w = 2 kv_heads head_dim and e bytes an element,
// rank r sends in C - 1 messages B (T - n_(r+1)) w e bytes in the forward pass: all blocks but that
// of the next rank. The backward pass sends them again, and in C - 1 more messages the gradients of
// all blocks but its own, B (T - n_r) w e bytes. Receives mirror the previous rank's sends.
class RingAttention {
 public:
  RingAttention() = default;  // one rank, sequences of any length
  // For sequences of `length`, cut by PositionsOf over the ranks of `context`. Cheap.
  RingAttention(const comm::Collectives& context, std::int64_t length);

  int Size() const { return context_.Size(); }
  bool Active() const { return Size() > 1; }
  const Positions& Own() const { return own_; }  // held by this rank

  // Below, shape.length is Own().Count(), shape.positions is Own(), and rows are this rank's. With
  // one rank: kernels::AttentionForward and AttentionBackward with their scratch.

  // Elements of scratch for either pass: panels, two blocks of keys and values, and for the
  // backward pass three of their gradients. Falls as 1 / Size() once sequences are long. dtype,
  // dropout: as of kernels::AttentionScratch.
  std::int64_t BufferElements(const device::Stream& stream, const kernels::AttentionShape& shape,
                              Dtype dtype, bool dropout) const;

  // Collective over the group. Operands as of kernels::AttentionForward and AttentionBackward;
  // buffers: [1, BufferElements()].
  void Forward(const device::Stream& stream, const kernels::AttentionShape& shape,
               const kernels::Matrix& qkv, const kernels::Dropout& dropout,
               const kernels::Matrix& out, const kernels::Matrix& lse,
               const kernels::Matrix& buffers) const;
  void Backward(const device::Stream& stream, const kernels::AttentionShape& shape,
                const kernels::Matrix& qkv, const kernels::Dropout& dropout,
                const kernels::Matrix& out, const kernels::Matrix& dout, const kernels::Matrix& lse,
                const kernels::Matrix& dqkv, const kernels::Matrix& buffers) const;

 private:
  comm::Collectives context_;
  std::int64_t length_ = 0;
  Positions own_;
};

}  // namespace trireme::parallel
