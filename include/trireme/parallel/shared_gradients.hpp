// Gradients of which several ranks of one data replica hold parts: packed into one message a group
// and summed once a step.
#ifndef TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_
#define TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/base/defect.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::parallel {

class SharedGradients {
 public:
  // groups: the transfers for each GradientSum that occurs. registry is allocated and must outlive
  // this. All ranks of a group hold the same parameters of its kind, in the same sizes.
  SharedGradients(tensor::Registry& registry,
                  const std::map<tensor::GradientSum, comm::Collectives>& groups,
                  Defect defect = Defect::kNone);
  // Collective over the replica.
  void Sum();
  std::int64_t Bytes() const { return bytes_; }  // of the packing buffer

 private:
  struct Message {
    comm::Collectives group;
    std::vector<tensor::ParameterId> parameters;
    std::int64_t elements = 0;
  };
  void Copy(const Message& message, bool pack);  // into the buffer, or back
  tensor::Registry* registry_;
  std::vector<Message> messages_;
  device::Buffer buffer_;  // of the largest message of more than one parameter
  std::int64_t bytes_ = 0;
};

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_SHARED_GRADIENTS_HPP_
