// Attention over sequences whose positions are cut over the ranks of a context group: blocks of
// keys and values travel around a ring while each rank's queries attend to one (Liu et al. 2023).
#pragma once

#include <cstdint>

#include "trireme/base/partition.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::parallel {

// Bytes sent: let rank r of C hold n_r of T positions, and let there be B sequences, w = 2 kv_heads
// head_dim and e bytes per element. In the forward pass rank r sends all blocks but the next
// rank's, C - 1 messages of B (T - n_(r+1)) w e bytes in total. The backward pass sends them again,
// and C - 1 messages with the gradients of all blocks but its own, B (T - n_r) w e bytes.
class RingAttention {
 public:
  RingAttention() = default;  // for one rank; sequences of any length
  // For sequences of `length` positions, which PositionsOf cuts over the ranks of `context`. Cheap.
  RingAttention(const comm::Collectives& context, std::int64_t length);

  int Size() const { return context_.Size(); }
  bool Active() const { return Size() > 1; }
  const Positions& Own() const { return own_; }  // positions that this rank holds

  // In the calls below, shape.length is Own().Count(), shape.positions is Own(), and matrices have
  // this rank's rows. With one rank they are kernels::AttentionForward and AttentionBackward.

  // Elements of scratch that suffice for either pass: the kernels' scratch, two blocks of keys and
  // values, and three blocks of their gradients. For long sequences it shrinks as 1 / Size().
  // dtype, dropout: as in kernels::AttentionScratch.
  std::int64_t BufferElements(const device::Stream& stream, const kernels::AttentionShape& shape,
                              Dtype dtype, bool dropout) const;

  // Collective over the context group. Operands as in kernels::AttentionForward and
  // AttentionBackward; buffers: [1, BufferElements()].
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
