// NcclChannel: its transfers, and the waits of the computation for them, in a timeline.
#include "nccl_channel.hpp"
#include "trace_transfer.hpp"

namespace trireme::comm::nccl {

namespace {

std::int64_t BytesOf(const Operation& operation) {
  const std::int64_t count =
      operation.places == nullptr ? operation.count : operation.places->Total();
  return count * static_cast<std::int64_t>(SizeOf(operation.dtype));
}

}  // namespace

void NcclChannel::TraceInto(trace::Recorder* recorder) {
  if (recorder_ != nullptr && !Capturing()) Settle();
  recorder_ = recorder;
}

void NcclChannel::BeginTrace(const Operation& operation, Flight& flight, void* link_queue) const {
  flight.traced = recorder_ != nullptr && !flight.recorded;
  if (!flight.traced) return;
  flight.slice = SliceOf(name_, operation.transfer, BytesOf(operation));
  if (!flight.begun.Made()) flight.begun = device::Event(stream_, true);
  flight.begun.Record(link_queue);
}

void NcclChannel::Trace(const Flight& flight) const {
  trace::Slice transfer = flight.slice;
  recorder_->Place(transfer, flight.begun, flight.arrived);
  recorder_->Add(transfer);
  if (flight.arrived.SecondsSince(flight.stood) <= 0) return;
  trace::Slice wait = WaitFor(transfer);
  wait.queue = trace::Queue::kGpu;
  recorder_->Place(wait, flight.stood, flight.arrived);
  recorder_->Add(wait);
}

}  // namespace trireme::comm::nccl
