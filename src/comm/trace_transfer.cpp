// Slices of waits for transfers.
#include "trace_transfer.hpp"

namespace trireme::comm {

device::Slice WaitFor(const device::Slice& transfer) {
  device::Slice wait = transfer;
  const bool stage = static_cast<Group>(wait.group) == Group::kPipeline &&
                     static_cast<Transfer>(wait.transfer) == Transfer::kReceive;
  wait.name = stage ? device::SliceName::kBubble : device::SliceName::kWait;
  wait.category = device::SliceCategory::kWait;
  return wait;
}

void TraceWait(device::Recorder& recorder, const device::Slice& transfer, double waited) {
  constexpr double kShortest = 1e-6;  // seconds; a shorter wait is the call itself
  if (waited < kShortest) return;
  device::Slice wait = WaitFor(transfer);
  wait.queue = device::SliceQueue::kHost;
  wait.begin = wait.end - waited;
  recorder.Add(wait);
}

}  // namespace trireme::comm
