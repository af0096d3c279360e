// LaunchOrder: the communicators of this process, and the comparison of notes.
#include "nccl_order.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "stream.hpp"

namespace emulator {
namespace {

std::vector<LaunchOrder*>& Living() {
  static std::vector<LaunchOrder*> living;
  return living;
}

}  // namespace

LaunchOrder::LaunchOrder(std::uint64_t id, std::vector<int> world)
    : id_(id), world_(std::move(world)) {
  for (LaunchOrder* other : Living()) {
    const auto both = std::ranges::count_if(
        world_, [&](int rank) { return std::ranges::count(other->world_, rank) > 0; });
    if (both < 2) continue;
    shared_.push_back(other);
    other->shared_.push_back(this);
  }
  Living().push_back(this);
}

LaunchOrder::~LaunchOrder() {
  std::erase(Living(), this);
  for (LaunchOrder* other : shared_) std::erase(other->shared_, this);
}

std::int64_t LaunchOrder::Launched(std::uint64_t capture) const {
  if (capture == 0) return launched_;
  return capture == capture_ ? recorded_ : 0;
}

LaunchNote LaunchOrder::Launch(std::uint64_t capture) {
  LaunchNote note;
  note.in_graph = capture != 0 ? 1 : 0;
  note.number = Launched(capture) + 1;
  for (const LaunchOrder* other : shared_) {
    if (note.occupied == static_cast<std::int32_t>(note.counts.size())) break;
    note.counts[static_cast<std::size_t>(note.occupied++)] = {other->id_, other->Launched(capture)};
  }
  if (capture == 0) {
    launched_ = note.number;
  } else {
    capture_ = capture;
    recorded_ = note.number;
  }
  return note;
}

void LaunchOrder::Compare(const LaunchNote& own, int rank, const LaunchNote& others,
                          int other) const {
  if (own.in_graph != others.in_graph) return;
  for (std::int32_t i = 0; i < own.occupied; ++i) {
    const LaunchNote::Count& mine = own.counts[static_cast<std::size_t>(i)];
    const auto end = others.counts.begin() + others.occupied;
    const auto theirs = std::find_if(others.counts.begin(), end, [&](const auto& count) {
      return count.communicator == mine.communicator;
    });
    if (theirs == end || theirs->launched == mine.launched) continue;
    const auto found = std::ranges::find(Living(), mine.communicator, &LaunchOrder::id_);
    Die(fmt::format(
        "ranks launch operations of two communicators in different orders: before operation {} of "
        "{}, rank {} had launched {} operations of {}, rank {} had launched {}{}; NCCL's kernels "
        "may wait for each other for ever",
        own.number, Name(), world_.at(static_cast<std::size_t>(rank)), mine.launched,
        found != Living().end() ? (*found)->Name() : "a communicator that is gone",
        world_.at(static_cast<std::size_t>(other)), theirs->launched,
        own.in_graph != 0 ? " (in a graph)" : ""));
  }
}

std::string LaunchOrder::Name() const {
  return fmt::format("communicator {}.{} of ranks {}", id_ >> 32, id_ & 0xffffffffu,
                     fmt::join(world_, ", "));
}

}  // namespace emulator
