// StagedChannel: transfers through host memory, for ranks that share a card (which NCCL refuses):
// copied from the GPU to page-locked memory, moved by MPI, and copied back. At every start that
// reads an operand the host waits for the computation. For trials and tests, not for speed.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/channel.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::comm {

class StagedChannel final : public Channel {
 public:
  // Collective over `group`. Also works on a CPU stream, whose memory is host memory.
  StagedChannel(const Communicator& group, const ChannelSetup& setup);
  int Start(const Operation& operation) override;
  bool Test(int ticket) override;
  void Wait(int ticket) override;
  bool Recordable() const override { return false; }

 private:
  // Host memory and state of one transfer; reused when its copy to the GPU has run.
  struct Flight {
    bool running = false;
    device::PinnedBuffer memory;  // the operand as MPI sees it; for sums of bf16, their result
    std::int64_t capacity = 0;    // bytes
    std::vector<float> sums;      // of bf16, in fp32, while MPI adds
    SumInPlace scattered;         // for a reduce-scatter
    std::vector<int> places;      // sizes and starts; MPI reads them until the end
    MPI_Request request = MPI_REQUEST_NULL;
    const char* arrived = nullptr;  // source of the final copy to the GPU
    void* to = nullptr;
    std::int64_t bytes = 0;
    std::int64_t rounded = 0;  // elements of `sums` to round into `memory` first
    device::Event copied;      // the copy to the GPU has run
  };
  Flight& Take(std::int64_t bytes, int& ticket);
  void Post(const Operation& operation, Flight& flight);
  void PostPlaced(const Operation& operation, Flight& flight);
  void PostSum(const Operation& operation, Flight& flight, std::int64_t count);
  void* Fetch(const Operation& operation, Flight& flight, std::int64_t at, std::int64_t count);

  Communicator group_;  // a duplicate, whose messages are separate from others
  device::Stream stream_;
  std::vector<Flight> flights_;
};

}  // namespace trireme::comm
