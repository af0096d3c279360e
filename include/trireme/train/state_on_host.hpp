// Blocks of training state on the host, for checkpoints and verification: the blocks themselves on
// a CPU, copies of them on a GPU.
#ifndef TRIREME_TRAIN_STATE_ON_HOST_HPP_
#define TRIREME_TRAIN_STATE_ON_HOST_HPP_

#include <cstddef>
#include <vector>

#include "trireme/checkpoint/writer.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/kernels/state_block.hpp"

namespace trireme::train {

class StateOnHost {
 public:
  // blocks: in the stream's memory, which must outlive this. Host copies have the type of sums
  // (SumTypeOf): fp32 for bf16.
  StateOnHost(const device::Stream& stream, std::vector<kernels::StateBlock> blocks);
  StateOnHost Fetch() &&;  // copies the device's contents in
  void Store() const;      // copies the host's contents out

  const std::vector<kernels::StateBlock>& Blocks() const { return here_; }
  operator const std::vector<kernels::StateBlock>&() const {  // NOLINT(google-explicit-constructor)
    return here_;
  }
  const kernels::StateBlock& operator[](std::size_t i) const { return here_[i]; }
  // NOLINTNEXTLINE(readability-identifier-naming): as containers have it
  std::size_t size() const { return here_.size(); }

 private:
  device::Stream stream_;
  std::vector<kernels::StateBlock> there_, here_;
  device::Buffer memory_;  // of here_; none on the CPU
};

// State for a checkpoint: on a GPU, blocks in the type of sums that are read from the device in
// pieces, so that no copy of all is needed.
checkpoint::State StateToRead(const device::Stream& stream, std::vector<kernels::StateBlock> model,
                              std::vector<kernels::StateBlock> optimizer);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_STATE_ON_HOST_HPP_
