// Slices of waits for transfers.
#include "trace_transfer.hpp"

namespace trireme::comm {

trace::Slice WaitFor(const trace::Slice& transfer) {
  trace::Slice wait = transfer;
  const bool stage = static_cast<Group>(wait.group) == Group::kPipeline &&
                     static_cast<Transfer>(wait.transfer) == Transfer::kReceive;
  wait.name = stage ? trace::Name::kBubble : trace::Name::kWait;
  wait.category = trace::Category::kWait;
  return wait;
}

void TraceWait(trace::Recorder& recorder, const trace::Slice& transfer, double waited) {
  constexpr double kShortest = 1e-6;  // seconds; a shorter wait is the call itself
  if (waited < kShortest) return;
  trace::Slice wait = WaitFor(transfer);
  wait.queue = trace::Queue::kHost;
  wait.begin = wait.end - waited;
  recorder.Add(wait);
}

}  // namespace trireme::comm
