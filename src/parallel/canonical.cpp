// Sums in a perfect binary tree: over arrays in one buffer, over ranks, and over a rank's leaves.
#include "trireme/parallel/canonical.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "trireme/base/error.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {

namespace {

constexpr const char* kCanonicalBug = "This is a bug in Trireme.";
// Most elements of one exchange: MPI counts are ints.
constexpr std::int64_t kCanonicalMostElements = std::int64_t{1} << 28;

}  // namespace

void TreeSum(const device::Stream& stream, Dtype dtype, void* buffer, int arrays,
             std::int64_t count) {
  const auto add = [&](int from, int to) {
    kernels::Accumulate(stream, dtype, count, ElementAt(buffer, dtype, from * count),
                        ElementAt(buffer, dtype, to * count));
  };
  for (int stride = 1; stride < arrays; stride *= 2) {
    for (int i = 0; i + stride < arrays; i += 2 * stride) add(i + stride, i);
  }
}

TreeCollectives::TreeCollectives(const comm::Collectives& group, const device::Stream& stream,
                                 Dtype dtype, std::int64_t most)
    : group_(group), stream_(stream) {
  const int ranks = group.Size();
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    throw RunError(fmt::format("canonical sums over {} ranks, no power of two", ranks),
                   kCanonicalBug);
  }
  if (ranks == 1 || most == 0) return;
  part_ = RoundUp(CeilDivide(most, ranks), kCut);  // the largest part
  buffer_ = device::AllocateZeroed(BytesOf(dtype, part_ * ranks), stream.Where());
}

// Returns the sum of this rank's part, which lies at the start of the exchange buffer.
void* TreeCollectives::Exchange(Dtype dtype, const void* from, const comm::Counts& counts) const {
  const std::int64_t largest = counts.Largest(group_.Size());
  if (largest > part_) {
    throw RunError(
        fmt::format("canonical sum: a part of {} elements in a buffer for {}", largest, part_),
        kCanonicalBug);
  }
  group_.AllToAll(dtype, from, buffer_.get(), counts);
  const std::int64_t own = counts.Of(group_.Rank(), group_.Size());
  TreeSum(stream_, dtype, buffer_.get(), group_.Size(), own);
  return buffer_.get();
}

void TreeCollectives::ReduceScatterInPlace(Dtype dtype, void* data, comm::Counts counts) const {
  if (group_.Size() > 1) ReduceScatter(dtype, data, data, counts);
}

void TreeCollectives::ReduceScatter(Dtype dtype, const void* from, void* to,
                                    comm::Counts counts) const {
  if (group_.Size() == 1) return group_.ReduceScatter(dtype, from, to, counts);
  const void* sum = Exchange(dtype, from, counts);
  const std::int64_t own = counts.Of(group_.Rank(), group_.Size());
  device::CopyWithin(stream_, sum, to, BytesOf(dtype, own));
}

void TreeCollectives::AllReduce(Dtype dtype, void* data, std::int64_t count) const {
  const int ranks = group_.Size();
  if (ranks == 1 || count == 0) return;
  const std::int64_t most = std::min(part_ * ranks, kCanonicalMostElements);
  if (most == 0) throw RunError("canonical sum: no buffer was allocated", kCanonicalBug);
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const std::int64_t length = std::min(most, count - begin);
    const comm::Counts counts = OwnCounts(length);
    const std::int64_t own = OwnPart(length, group_.Rank(), ranks).begin;
    void* piece = ElementAt(data, dtype, begin);
    ReduceScatter(dtype, piece, ElementAt(piece, dtype, own), counts);
    group_.AllGatherInPlace(dtype, piece, counts);
  }
}

// Group g is collected in level popcount(g). When it is complete, so are as many subtrees as g has
// trailing one bits: each is merged into the level below, which holds its sibling.
int LeafSums::Enter(std::int64_t group, const Merge& add) {
  if (group < group_) {
    throw RunError(fmt::format("canonical sum: a leaf of group {} behind group {}", group, group_),
                   kCanonicalBug);
  }
  for (; group_ < group; ++group_) {
    const auto bits = static_cast<std::uint64_t>(group_);
    const int level = std::popcount(bits);
    for (int i = 0; i < std::countr_one(bits); ++i) add(level - i, level - i - 1);
  }
  return std::popcount(static_cast<std::uint64_t>(group));
}

void LeafSums::Finish(const Merge& add) {
  for (int level = std::popcount(static_cast<std::uint64_t>(group_)); level > 0; --level) {
    add(level, level - 1);
  }
  group_ = 0;
}

int LeafSums::Levels(std::int64_t groups) {
  return std::countr_zero(std::bit_ceil(static_cast<std::uint64_t>(groups))) + 1;
}

// LeafGradients: the ranges of gradients that a task adds to, and their sums over leaves.

// The flat ranges of gradients to which tasks of this unit and phase add.
std::vector<Part> LeafGradients::RangesOf(int unit, Phase phase) const {
  const Part whole = registry_.Units()[static_cast<std::size_t>(unit)].range;
  if (phase == Phase::kWhole) return {whole};
  if (phase == Phase::kHead) {
    const Part second = registry_.SecondRange();
    return {second.Size() > 0 ? second : whole};
  }
  std::vector<Part> ranges;
  const auto& parameters = registry_.Parameters();
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    const kernels::Parameter& parameter = parameters[id];
    if (registry_.UnitOf(static_cast<kernels::ParameterId>(id)) != unit) continue;
    if (!parameter.Held() || parameter.early != (phase == Phase::kEarly)) continue;
    ranges.push_back({parameter.offset, parameter.offset + parameter.LocalSize()});
  }
  return ranges;
}

// Adds level `from` to level `to`, then sets `from` to zero.
void LeafGradients::Merge(const std::vector<Part>& ranges, int from, int to) const {
  for (const Part& range : ranges) {
    const Dtype type = registry_.SumType();
    void* source = ElementAt(registry_.GradientLevel(from), type, range.begin);
    kernels::Accumulate(stream_, type, range.Size(), source,
                        ElementAt(registry_.GradientLevel(to), type, range.begin));
    device::SetZero(stream_, source, BytesOf(type, range.Size()));
  }
}

void LeafGradients::Enter(int unit, Phase phase, std::int64_t group) {
  if (!canonical_) return;
  const auto [at, added] = trackers_.try_emplace({unit, phase});
  Tracker& tracker = at->second;
  if (added) tracker.ranges = RangesOf(unit, phase);
  const int level =
      tracker.sums.Enter(group, [&](int from, int to) { Merge(tracker.ranges, from, to); });
  registry_.BindGradientLevel(unit, level);
}

void LeafGradients::Finish() {
  for (auto& [key, tracker] : trackers_) {
    const std::vector<Part>& ranges = tracker.ranges;
    tracker.sums.Finish([&](int from, int to) { Merge(ranges, from, to); });
    registry_.BindGradientLevel(key.first, 0);
  }
}

}  // namespace trireme::parallel
