// Sums of gradients of which several ranks of one data replica hold terms: packed into one message
// per group and summed once per step; in sharded pieces before each piece is scattered.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::parallel {

// Gradients of parameters that several ranks of one data replica hold (norms, shared key/value
// heads): once all sums are made, one rank's bits become those of all copies. Sums that ranks make
// in groups of their own may be added in another order in each group, by an MPI that looks at the
// network, and copies would part in their last bits.

// Transfers of the groups whose ranks hold copies (tensor, key_value) and of those over which
// gradients are summed (data: ranks that own the same elements; shard).
struct CopyGroups {
  comm::Collectives tensor, key_value, data, shard;
};

class CopiedGradients {
 public:
  // Allocates the packing buffer. sharded: gradients are reduce-scattered (grid.sharding).
  // canonical: sums over data and shard group follow a fixed tree. registry must outlive this.
  //
  // A sum of two terms is the same in any order, so that nothing is sent where no group of sums has
  // more than two ranks. Tied tables need nothing for this reason: the last sum is that of two
  // stages, whose terms are the same in all replicas. With three ranks or more:
  //   not sharded, complete on each copy    broadcast over the copies, of the first one's
  //   not sharded, summed over the copies   broadcast over the data group, of the first replica's
  //   sharded                               the owned parts put together over the shard group, and
  //                                         broadcast over the copies (whose cuts may differ)
  CopiedGradients(kernels::Registry& registry, const CopyGroups& groups, bool sharded,
                  bool canonical, const device::Stream& stream);
  // Collective over the replicas; queued on a GPU. Gradients are summed.
  void Share();
  std::int64_t Bytes() const { return device::BytesOf(buffer_); }

 private:
  struct Message {
    comm::Collectives group;  // of the broadcast, from its rank 0
    bool parts = false;       // first put together over the shard group
    std::vector<kernels::ParameterId> parameters;
    std::int64_t elements = 0;
  };
  void AddMessage(Message message, bool shared_heads, bool summed);
  void Copy(const Message& message, bool pack);

  kernels::Registry* registry_;
  device::Stream stream_;
  comm::Collectives shard_;
  std::vector<Message> messages_;
  device::Buffer buffer_;  // [most elements of a message], of the gradients' type
};

class SharedGradients {
 public:
  // Allocates the packing buffer. groups: the transfers for each GradientSum that occurs. registry
  // must outlive this. All ranks of a group hold the same parameters of its kind, in the same
  // sizes. sharded: gradients are reduce-scattered (grid.sharding); sums over tensor ranks come
  // before that, piece by piece, and sums of tied gradients after it, of owned elements alone.
  SharedGradients(kernels::Registry& registry,
                  const std::map<kernels::GradientSum, comm::Collectives>& groups,
                  bool sharded = false, const device::Stream& stream = {});
  // Sums all gradients; if sharded, tied ones only. Collective over the replica.
  void Sum() { SumPiece(kAll); }
  // If sharded: sums the gradients of this piece (a number in the registry's ownership) before it
  // is scattered. They are whole and, if sharded, bound. Collective over the tensor group, in the
  // same order on all its ranks.
  void SumPiece(int piece);
  std::int64_t Bytes() const { return device::BytesOf(buffer_); }

 private:
  static constexpr int kAll = -1;
  struct Message {
    comm::Collectives group;
    int piece = kAll;
    std::vector<kernels::ParameterId> parameters;
    bool owned = false;  // owned elements only, instead of all held ones
    std::int64_t elements = 0;
  };
  struct Span {
    void* data = nullptr;
    std::int64_t elements = 0;
  };
  int PieceOf(const kernels::Parameter& parameter) const;
  Span SpanOf(const Message& message, kernels::ParameterId id) const;
  void Sum(const Message& message);
  void Copy(const Message& message, bool pack);  // into the buffer, or back
  kernels::Registry* registry_;
  device::Stream stream_;
  std::vector<Message> messages_;
  device::Buffer buffer_;  // packs the largest message of more than one parameter
};

}  // namespace trireme::parallel
