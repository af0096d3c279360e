// Checker: written segments, in groups.
#include "checker.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/clock.hpp"

namespace trireme::checkpoint {

namespace {
constexpr std::int64_t kGroupBytes = std::int64_t{64} << 20;  // flushed and read back together
}

Checker::Checker(std::vector<int> cores, const std::vector<WritePlan>& plans)
    : plans_(plans), worker_(std::move(cores)) {}

void Checker::Begin(Output& output) {
  output_ = &output;
  written_.clear();  // of a checkpoint that failed
  written_bytes_ = 0;
  flush_seconds_ = read_seconds_ = 0;
}

void Checker::Written(const StagedSegment& segment) {
  written_.push_back(segment);
  written_bytes_ += plans_[segment.file].segments[segment.segment].length;
  if (written_bytes_ >= kGroupBytes) Queue(true);
}

void Checker::Queue(bool flush) {
  written_bytes_ = 0;
  worker_.Queue([this, flush, segments = std::exchange(written_, {})] {
    const double start = Seconds();
    if (flush) output_->FlushData();
    const double flushed = Seconds();
    output_->ReadBack(segments, [this] { return worker_.Stopping() || stopping_; });
    flush_seconds_ += flushed - start;
    read_seconds_ += Seconds() - flushed;
  });
}

void Checker::Finish() {
  Queue(false);
  worker_.Finish();
}

std::int64_t Checker::MemoryBytes() const {
  std::int64_t longest = 0;
  for (const WritePlan& plan : plans_) {
    for (const Segment& each : plan.segments) longest = std::max(longest, each.length);
  }
  return longest;
}

}  // namespace trireme::checkpoint
