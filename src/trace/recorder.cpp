// Recorder: slices of the host as they end, slices of a GPU's queue from pairs of events.
#include "trireme/trace/recorder.hpp"

#include <algorithm>

#include "trireme/device/memory.hpp"

namespace trireme::trace {

Recorder::Recorder(std::int64_t most, const device::Stream& stream)
    : most_(static_cast<std::size_t>(std::max<std::int64_t>(most, 0))),
      since_(Seconds()),
      stream_(stream) {
  slices_.reserve(most_);  // pages are taken as they are written
  if (!OnGpu()) return;
  origin_ = device::Event(stream_, true);
  CompareClocks();
}

void Recorder::Put(const Slice& slice) {
  if (slices_.size() < most_) {
    slices_.push_back(slice);
    return;
  }
  LeaveOut(slice.step);
}

void Recorder::LeaveOut(std::int64_t step) {
  if (left_out_++ == 0) full_at_ = step;
}

bool Recorder::TakesQueued() {
  if (!OnGpu()) return false;
  if (slices_.size() + queued_.size() < most_) return true;
  LeaveOut(step_);
  return false;
}

void Recorder::Add(Slice slice) {
  slice.begin = std::max(slice.begin, since_);
  slice.step = step_;
  if (slice.queue == Queue::kHost) {
    slice.micro_batch = micro_batch_;
    slice.chunk = chunk_;
  }
  Put(slice);
}

std::size_t Recorder::Mark() {
  if (marked_ == marks_.size()) marks_.emplace_back(stream_, true);
  marks_[marked_].Record(stream_.gpu->queue);
  return marked_++;
}

void Recorder::AddQueued(const Slice& slice, std::size_t begin, std::size_t end) {
  queued_.push_back({slice, begin, end});
  Slice& queued = queued_.back().slice;
  queued.queue = Queue::kGpu;
  queued.step = step_;
  queued.micro_batch = micro_batch_;
  queued.chunk = chunk_;
}

// A moment that lies between two readings of the host's clock.
void Recorder::CompareClocks() {
  device::Synchronise(stream_);
  const double before = Seconds();
  origin_.Record(stream_.gpu->queue);
  origin_.Await();
  const double after = Seconds();
  origin_time_ = (before + after) / 2;
  gpu_clock_error_ = std::max(gpu_clock_error_, (after - before) / 2);
}

void Recorder::Place(Slice& slice, const device::Event& begin, const device::Event& end) const {
  slice.begin = origin_time_ + begin.SecondsSince(origin_);
  slice.end = origin_time_ + end.SecondsSince(origin_);
}

void Recorder::Settle() {
  if (!OnGpu()) return;
  device::Synchronise(stream_);
  for (Queued& queued : queued_) {
    Place(queued.slice, marks_[queued.begin], marks_[queued.end]);
    Put(queued.slice);
  }
  queued_.clear();
  marked_ = 0;
  CompareClocks();
}

void Scope::Begin(const What& what) {
  what_ = what;
  what_.queues = what_.queues && recorder_->TakesQueued();
  if (what_.queues) mark_ = recorder_->Mark();
  begin_ = Seconds();
}

void Scope::End() {
  Slice slice;
  slice.begin = begin_;
  slice.end = Seconds();
  slice.name = what_.name;
  slice.category = what_.category;
  slice.phase = what_.phase;
  slice.layer = what_.layer;
  recorder_->Add(slice);
  if (what_.queues) recorder_->AddQueued(slice, mark_, recorder_->Mark());
}

}  // namespace trireme::trace
