// Transfers by way of the host, for ranks that share a card, which NCCL refuses: out of the GPU
// into page-locked memory, through MPI, and in again. The host waits for the computation at every
// start that reads an operand. For trials and tests, not for speed.
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
  // Collective over `group`. On a stream of the CPU it works too, host memory being its memory.
  StagedChannel(const Communicator& group, const ChannelSetup& setup);
  int Start(const Operation& operation) override;
  bool Test(int ticket) override;
  void Wait(int ticket) override;
  double TakeExposed() override { return 0; }  // the host waits, and its caller measures that
  void CheckHealth() override {}               // a rank that MPI loses ends the job
  std::vector<std::shared_future<void>> GiveUp() noexcept override { return {}; }
  bool Recordable() const override { return false; }

 private:
  // One transfer's place on the host; used again when its copy in has run.
  struct Flight {
    bool running = false;
    device::PinnedBuffer memory;  // the operand as MPI sees it; of sums of bf16: as it travels out
    std::int64_t capacity = 0;    // bytes
    std::vector<float> sums;      // of bf16, while MPI adds up
    SumInPlace scattered;         // of a reduce-scatter
    std::vector<int> places;      // sizes and starts, which MPI reads until the end
    MPI_Request request = MPI_REQUEST_NULL;
    const char* arrived = nullptr;  // source of the copy at the end; below: its target and size
    void* to = nullptr;
    std::int64_t bytes = 0;
    std::int64_t rounded = 0;  // so many elements of `sums` are rounded into `memory` first
    device::Event copied;      // in
  };
  Flight& Take(std::int64_t bytes, int& ticket);
  void Post(const Operation& operation, Flight& flight);
  void PostPlaced(const Operation& operation, Flight& flight);
  void PostSum(const Operation& operation, Flight& flight, std::int64_t count);
  void* Fetch(const Operation& operation, Flight& flight, std::int64_t at, std::int64_t count);

  Communicator group_;  // a communicator of its own: no message of others meets one of these
  device::Stream stream_;
  std::vector<Flight> flights_;
};

}  // namespace trireme::comm
