// NcclChannel: its transfers, and the waits of the computation for them, in a timeline.
#include "../trace_transfer.hpp"
#include "nccl_channel.hpp"

namespace trireme::comm::nccl {

namespace {

std::int64_t BytesOf(const Operation& operation) {
  const std::int64_t count =
      operation.places == nullptr ? operation.count : operation.places->Total();
  return count * static_cast<std::int64_t>(SizeOf(operation.dtype));
}

}  // namespace

void NcclChannel::TraceInto(device::Recorder* recorder) {
  if (recorder_ != nullptr && !Capturing()) Settle();
  recorder_ = recorder;
  for (Edge& edge : edges_) edge.traced = 0;
}

void NcclChannel::BeginTrace(const Operation& operation, Flight& flight, void* link_queue) {
  flight.traced = recorder_ != nullptr && !flight.recorded;
  if (!flight.traced) return;
  flight.slice = SliceOf(name_, operation.transfer, BytesOf(operation));
  for (Edge& edge : edges_) {
    const bool message =
        operation.transfer == (edge.outgoing ? Transfer::kSend : Transfer::kReceive);
    if (!message || edge.peer != operation.peer || edge.tag != operation.tag) continue;
    flight.slice.peer = edge.peer;
    flight.slice.tag = edge.tag;
    flight.slice.sequence = ++edge.traced;
  }
  if (!flight.begun.Made()) flight.begun = device::Event(stream_, true);
  flight.begun.Record(link_queue);
}

void NcclChannel::Trace(const Flight& flight) const {
  device::Slice transfer = flight.slice;
  recorder_->Place(transfer, flight.begun, flight.arrived);
  recorder_->Add(transfer);
  if (flight.arrived.SecondsSince(flight.stood) <= 0) return;
  device::Slice wait = WaitFor(transfer);
  // Waits of both directions: a step's times on a GPU do not tell them apart.
  if (name_ == Group::kPipeline) wait.name = device::SliceName::kBubble;
  wait.queue = device::SliceQueue::kGpu;
  recorder_->Place(wait, flight.stood, flight.arrived);
  recorder_->Add(wait);
}

}  // namespace trireme::comm::nccl
