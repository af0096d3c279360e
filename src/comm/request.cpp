// Request: a transfer under way, and the moment at which it enters the ledger.
#include <algorithm>
#include <cstring>
#include <utility>

#include "scatter_in_place.hpp"
#include "trace_transfer.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/work_log.hpp"

namespace trireme::comm {

Request::Request(Request&& other) noexcept { *this = std::move(other); }

Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  handle_ = std::exchange(other.handle_, MPI_REQUEST_NULL);
  channel_ = std::exchange(other.channel_, nullptr);
  ticket_ = other.ticket_;
  traced_ = other.traced_;
  log_ = other.log_;
  ledger_ = other.ledger_;
  group_ = other.group_;
  transfer_ = other.transfer_;
  group_size_ = other.group_size_;
  payload_ = other.payload_;
  started_ = other.started_;
  recorder_ = other.recorder_;
  flight_ = other.flight_;
  places_ = std::move(other.places_);
  part_ = std::move(other.part_);
  part_to_ = std::exchange(other.part_to_, nullptr);
  return *this;
}

bool Request::Test() {
  if (Complete()) return true;
  if (channel_ != nullptr) {
    if (log_ != nullptr || !channel_->Test(ticket_)) return false;
    Wait();
    return true;
  }
  int done = 0;
  MPI_Test(&handle_, &done, MPI_STATUS_IGNORE);
  if (done == 0) return false;
  Finish(0, Seconds() - started_);
  return true;
}

void Request::Wait() { Wait(Seconds()); }

void Request::Wait(double since) {
  if (Complete()) return;
  const double begin = Seconds();
  if (recorder_ != nullptr) recorder_->Await(flight_);
  if (channel_ != nullptr) {
    if (log_ != nullptr) log_->Wait(ticket_);
    std::exchange(channel_, nullptr)->Wait(ticket_);
    return Finish(Seconds() - begin, 0);  // the channel tells how long the device waits
  }
  MPI_Wait(&handle_, MPI_STATUS_IGNORE);
  Finish(Seconds() - begin, std::max(0.0, since - started_));
}

void Request::BeginFlight(const Communicator& group, Call call) {
  recorder_ = group.Recorder();
  if (recorder_ != nullptr) flight_ = recorder_->Enter(group.RecordedAs(), call, payload_);
}

void Request::BeginMessage(const Communicator& group, Call call, int peer, int tag) {
  recorder_ = group.Recorder();
  if (recorder_ == nullptr) return;
  flight_ = recorder_->EnterMessage(group.RecordedAs(), call, payload_, peer, tag);
}

void Request::ScatterInPlace(const Communicator& group, Dtype dtype, void* data) {
  const int* const sizes = places_.Sizes();
  const void* from = MPI_IN_PLACE;
  void* to = data;
  if (!ScattersInPlace(sizes, group.Size())) {
    part_.resize(static_cast<std::size_t>(sizes[group.Rank()]) * SizeOf(dtype));
    from = part_to_ = data;
    to = part_.data();
  }
  MPI_Ireduce_scatter(from, to, sizes, MpiType(dtype), MPI_SUM, group.Handle(), &handle_);
}

void Request::Finish(double waited, double hidden) {
  if (recorder_ != nullptr) recorder_->Leave(flight_, 0);
  if (part_to_ != nullptr && !part_.empty()) std::memcpy(part_to_, part_.data(), part_.size());
  part_to_ = nullptr;
  part_.clear();
  ledger_->Record(group_, transfer_, group_size_, payload_, waited, hidden);
  if (device::Recorder* const recorder = ledger_->Trace()) Trace(*recorder, waited);
  Places done = std::move(places_);  // for the next transfer
}

void Request::Trace(device::Recorder& recorder, double waited) const {
  device::Slice slice = SliceOf(group_, transfer_, payload_);
  slice.begin = started_;
  slice.end = Seconds();
  if (flight_.peer >= 0) {
    slice.peer = flight_.peer;
    slice.tag = flight_.tag;
    slice.sequence = flight_.sequence;
  }
  if (!traced_) recorder.Add(slice);
  TraceWait(recorder, slice, waited);
}

void Collectives::Carry(Request& request, const Operation& operation) const {
  request.ticket_ = channel_->Start(operation);
  request.channel_ = channel_;
  request.traced_ = channel_->Traces();
}

}  // namespace trireme::comm
