// Gradients of parameters that several ranks of one data replica hold. SharedGradients sums terms
// that several ranks have; CopiedGradients makes all copies equal in every bit.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::parallel {

// Makes copies of gradients within a data replica (norms, shared key/value heads) equal in every
// bit, after all sums, by sending one rank's to the others. They can differ in their last bits
// because each copy is summed in a group of its own, in which MPI may choose another order.

// Groups whose ranks hold copies (tensor, key_value), and groups over which gradients are summed
// (data: ranks that own the same elements; shard).
struct CopyGroups {
  comm::Collectives tensor, key_value, data, shard;
};

class CopiedGradients {
 public:
  // Allocates the packing buffer. sharded: gradients are reduce-scattered (grid.sharding).
  // canonical: sums over data and shard group follow a fixed tree. registry must outlive this.
  //
  // A sum of two terms has the same bits in any order, so nothing is sent unless a group of sums
  // has more than two ranks. Tied tables are never sent: their last sum is over two stages.
  // Otherwise:
  //   not sharded, not summed over copies   the first copy is broadcast to the others
  //   not sharded, summed over copies       the first replica's is broadcast over the data group
  //   sharded                               owned parts are assembled over the shard group, and the
  //                                         first copy is broadcast (copies may be cut differently)
  CopiedGradients(kernels::Registry& registry, const CopyGroups& groups, bool sharded,
                  bool canonical, const device::Stream& stream);
  // Call after all gradients are summed. Collective over the replicas; queued on a GPU.
  void Share();
  std::int64_t Bytes() const { return device::BytesOf(buffer_); }

 private:
  struct Message {
    comm::Collectives group;  // over which rank 0 broadcasts
    bool parts = false;       // first assembled over the shard group
    std::vector<kernels::ParameterId> parameters;
    std::int64_t elements = 0;
  };
  void AddMessage(Message message, bool shared_heads, bool summed);
  void Copy(const Message& message, bool pack);

  kernels::Registry* registry_;
  device::Stream stream_;
  comm::Collectives shard_;
  std::vector<Message> messages_;
  device::Buffer buffer_;  // [elements of the largest message], type of the gradients
};

class SharedGradients {
 public:
  // Allocates the packing buffer. groups: the group of each GradientSum that occurs; all its ranks
  // hold the same parameters of that kind, in the same sizes. sharded: gradients are
  // reduce-scattered (grid.sharding); sums over tensor ranks come before that, piece by piece, and
  // sums of tied gradients after it, over owned elements only. registry must outlive this.
  SharedGradients(kernels::Registry& registry,
                  const std::map<kernels::GradientSum, comm::Collectives>& groups,
                  bool sharded = false, const device::Stream& stream = {});
  // Sums all shared gradients; if sharded, only tied ones. Collective over the replica.
  void Sum() { SumPiece(kAll); }
  // If sharded: sums the shared gradients of this piece (an index in the registry's ownership)
  // before it is scattered. They are whole and, if sharded themselves, bound. Collective over the
  // tensor group, whose ranks call this for the pieces in the same order.
  void SumPiece(int piece);
  std::int64_t Bytes() const { return device::BytesOf(buffer_); }

 private:
  static constexpr int kAll = -1;
  struct Message {
    comm::Collectives group;
    int piece = kAll;
    std::vector<kernels::ParameterId> parameters;
    bool owned = false;  // only owned elements, instead of all held ones
    std::int64_t elements = 0;
  };
  struct Span {
    void* data = nullptr;
    std::int64_t elements = 0;
  };
  int PieceOf(const kernels::Parameter& parameter) const;
  Span SpanOf(const Message& message, kernels::ParameterId id) const;
  void Sum(const Message& message);
  void Copy(const Message& message, bool pack);  // pack: into the buffer; else back
  kernels::Registry* registry_;
  device::Stream stream_;
  std::vector<Message> messages_;
  device::Buffer buffer_;  // as large as the largest message of several parameters
};

}  // namespace trireme::parallel
