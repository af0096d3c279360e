// UnitGathers: the queue of announced uses, and their gathers under way.
#include "sharding_gathers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/parallel/sharding_cut.hpp"

namespace trireme::parallel {

namespace {
constexpr const char* kBug = "This is a bug in Trireme.";
}

UnitGathers::UnitGathers(const comm::Collectives& shard, kernels::Registry& registry,
                         const device::Stream& stream, const ShardSetup& setup)
    : shard_(shard.Carrying(comm::Payload::kParameters)),
      registry_(&registry),
      stream_(stream),
      prefetch_(setup.overlap ? setup.prefetch : 0),
      buffers_(registry, registry.Type(), stream.Where(), setup.prefetch + 1),
      units_(registry) {}

void UnitGathers::Announce(const std::vector<int>& uses) {
  const bool used = next_ == announced_.size();
  if (!used || !in_use_.empty()) {
    const Gather& left = used ? in_use_.back() : announced_[next_];
    throw RunError(fmt::format("sharding: new tasks begin, and {} {}", units_.NameOf(left.unit),
                               used ? "is still in use" : "was announced and never used"),
                   kBug);
  }
  announced_.clear();
  next_ = 0;
  for (const int unit : uses) {
    if (units_.Held(unit)) announced_.push_back({unit, UnitBuffers::kNone, {}});
  }
  StartAhead();
}

void UnitGathers::Start(Gather& gather) {
  const kernels::Piece& piece = units_.PieceOf(gather.unit);
  const Dtype dtype = registry_->Type();
  gather.request = shard_.StartAllGather(dtype, ElementAt(registry_->Values(), dtype, piece.value),
                                         buffers_.At(gather.buffer), OwnCounts(piece));
}

void UnitGathers::Wait(Gather& gather) {
  const double start = Seconds();
  gather.request.Wait();
  seconds_waited_ += Seconds() - start;
}

// Starts as many gathers as may be ahead, in order: if one finds no buffer, later ones wait too.
void UnitGathers::StartAhead() {
  const std::size_t most = std::min(static_cast<std::size_t>(prefetch_), announced_.size() - next_);
  while (started_ < most) {
    Gather& gather = announced_[next_ + started_];
    gather.buffer = buffers_.Take(gather.unit);
    if (gather.buffer == UnitBuffers::kNone) return;
    Start(gather);
    ++started_;
  }
}

void UnitGathers::CheckNext(int unit) const {
  const bool used = next_ == announced_.size();
  if (!used && announced_[next_].unit == unit) return;
  throw RunError(fmt::format("sharding: {} is used where {} was announced", units_.NameOf(unit),
                             used ? "nothing" : units_.NameOf(announced_[next_].unit)),
                 kBug);
}

int UnitGathers::BufferNow(int unit) {
  const int buffer = buffers_.Take(unit);
  if (buffer != UnitBuffers::kNone) return buffer;
  // Used twice at once: nobody reads it before this call returns, with the same values again.
  for (const Gather& other : in_use_) {
    if (other.unit != unit) continue;
    buffers_.Share(other.buffer);
    return other.buffer;
  }
  throw RunError(fmt::format("sharding: no memory for {} while {} is in use", units_.NameOf(unit),
                             in_use_.empty() ? "nothing" : units_.NameOf(in_use_.back().unit)),
                 kBug);
}

void UnitGathers::Use(int unit) {
  if (!units_.Held(unit)) return;
  CheckNext(unit);
  const bool ahead = started_ > 0;
  if (!ahead) announced_[next_].buffer = BufferNow(unit);
  Gather gather = std::move(announced_[next_++]);
  ++count_;
  if (ahead) {
    --started_;
    if (gather.request.Test()) ++ready_;
  } else {
    Start(gather);
  }
  Wait(gather);
  registry_->BindValues(unit, buffers_.At(gather.buffer));
  in_use_.push_back(std::move(gather));
  StartAhead();
}

void UnitGathers::Done(int unit) {
  if (!units_.Held(unit)) return;
  const auto innermost = [&] {
    return std::find_if(in_use_.rbegin(), in_use_.rend(),
                        [&](const Gather& gather) { return gather.unit == unit; });
  };
  auto last = innermost();
  if (last == in_use_.rend()) {
    throw RunError(fmt::format("sharding: {} is done with and was not in use", units_.NameOf(unit)),
                   kBug);
  }
  buffers_.Give(last->buffer);
  in_use_.erase(std::next(last).base());
  last = innermost();
  registry_->BindValues(unit, last == in_use_.rend() ? nullptr : buffers_.At(last->buffer));
  StartAhead();
}

void UnitGathers::Progress() {
  for (std::size_t i = 0; i < started_; ++i) announced_[next_ + i].request.Test();
}

}  // namespace trireme::parallel
