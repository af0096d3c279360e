// Sums of gradients of which several ranks of one data replica hold terms: packed into one message
// per group and summed once per step; in sharded pieces before each piece is scattered.
#ifndef TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_
#define TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::parallel {

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
  void Sum();
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
  void Add(Message& message, kernels::ParameterId id);
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

#endif  // TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_
