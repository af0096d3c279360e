// Gradients of which several ranks of one data replica hold parts: packed into one message a group
// and summed once a step; those of sharded pieces before each one is scattered.
#ifndef TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_
#define TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::parallel {

class SharedGradients {
 public:
  // groups: the transfers for each GradientSum that occurs. registry must outlive
  // this. All ranks of a group hold the same parameters of its kind, in the same
  // sizes. sharded: gradients are reduce-scattered (grid.sharding), so that those that tensor ranks
  // hold parts of meet before that, piece by piece, and tied ones afterwards, their owned elements
  // alone.
  SharedGradients(tensor::Registry& registry,
                  const std::map<tensor::GradientSum, comm::Collectives>& groups,
                  bool sharded = false, const device::Stream& stream = {});
  // Collective over the replica. Sharded: of tied gradients only.
  void Sum();
  // Sharded: the sums that this piece (its number in the registry's ownership) needs before it is
  // scattered. Its gradients are whole and, where they are sharded, bound. Collective over the
  // tensor group, in the same order on all its ranks.
  void SumPiece(int piece);
  std::int64_t Bytes() const { return device::BytesOf(buffer_); }

 private:
  static constexpr int kAll = -1;
  struct Message {
    comm::Collectives group;
    int piece = kAll;
    std::vector<tensor::ParameterId> parameters;
    bool owned = false;  // the elements that this rank owns, instead of all that it holds
    std::int64_t elements = 0;
  };
  struct Span {
    void* data = nullptr;
    std::int64_t elements = 0;
  };
  void Add(Message& message, tensor::ParameterId id);
  int PieceOf(const tensor::Parameter& parameter) const;
  Span SpanOf(const Message& message, tensor::ParameterId id) const;
  void Sum(const Message& message);
  void Copy(const Message& message, bool pack);  // into the buffer, or back
  tensor::Registry* registry_;
  device::Stream stream_;
  std::vector<Message> messages_;
  device::Buffer buffer_;  // packs the largest message of more than one parameter
};

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_
