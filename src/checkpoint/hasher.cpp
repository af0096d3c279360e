// Hasher: rounds at once, or held back until they are released.
#include "hasher.hpp"

#include <utility>

namespace trireme::checkpoint {

Hasher::Hasher(std::vector<int> cores, std::vector<WritePlan>& plans)
    : plans_(plans), worker_(std::move(cores)) {}

void Hasher::HoldBack() {
  const std::lock_guard lock(mutex_);
  hold_back_ = true;
  held_back_.clear();  // of a checkpoint that failed
}

void Hasher::Release() {
  const std::lock_guard lock(mutex_);
  hold_back_ = false;
  for (auto& task : std::exchange(held_back_, {})) worker_.Queue(std::move(task));
}

void Hasher::Queue(const Round& round, Data data) {
  auto task = [this, &round, data = std::move(data)] { Make(round, data); };
  const std::lock_guard lock(mutex_);
  if (hold_back_) {
    held_back_.emplace_back(std::move(task));
  } else {
    worker_.Queue(std::move(task));
  }
}

void Hasher::Make(const Round& round, const Data& data) {
  for (const StagedSegment& staged : round.segments) {
    if (worker_.Stopping()) return;
    Segment& segment = plans_[staged.file].segments[staged.segment];
    segment.hash = Hash(data(staged), segment.length);
  }
}

}  // namespace trireme::checkpoint
