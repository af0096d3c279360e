// Blocks of training state on the host: as they are where the CPU computes, copies of those on a
// GPU. What checkpoints write and read, and verification compares.
#ifndef TRIREME_TRAINING_STATE_ON_HOST_HPP_
#define TRIREME_TRAINING_STATE_ON_HOST_HPP_

#include <cstddef>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/tensor/state_block.hpp"

namespace trireme::training {

class StateOnHost {
 public:
  // `there`: in the stream's memory, which must outlive this. Their dtype on the host is that of
  // sums (SumTypeOf): bf16 is fp32 here.
  StateOnHost(const device::Stream& stream, std::vector<tensor::StateBlock> there);
  StateOnHost Fetch() &&;  // with what is there now
  void Store() const;      // what is here goes there

  const std::vector<tensor::StateBlock>& Blocks() const { return here_; }
  operator const std::vector<tensor::StateBlock>&() const {  // NOLINT(google-explicit-constructor)
    return here_;
  }
  const tensor::StateBlock& operator[](std::size_t i) const { return here_[i]; }
  // NOLINTNEXTLINE(readability-identifier-naming): as containers have it
  std::size_t size() const { return here_.size(); }

 private:
  device::Stream stream_;
  std::vector<tensor::StateBlock> there_, here_;
  device::Buffer memory_;  // of here_; none on the CPU
};

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_STATE_ON_HOST_HPP_
