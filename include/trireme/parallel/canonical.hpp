// Sums in the fixed tree of run.canonical, which give the same bits in every layout
// (doc/reference/numerics.md): over the ranks of a group, and over the leaves of one rank.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::parallel {

// run.canonical = DxT (doc/reference/numerics.md): how the work is cut, the same in every layout.
struct Canonical {
  int data_groups = 0;    // D, number of groups of leaves; 0: canonical sums are off
  int slices = 0;         // T, slices of heads, hidden features and vocabulary
  std::int64_t leaf = 0;  // sequences per leaf, always computed together
  bool On() const { return data_groups > 0; }
  bool operator==(const Canonical&) const = default;
};

// Adds up `arrays` arrays, a power of two, in a perfect binary tree: ((0 + 1) + (2 + 3)) + ...
// buffer: [arrays, count]; array 0 becomes the sum, the others are overwritten.
void TreeSum(const device::Stream& stream, Dtype dtype, void* buffer, int arrays,
             std::int64_t count);

// Sums over the ranks of a group, a power of two, in TreeSum's order: after an all-to-all each rank
// adds up its part. Moves as many bytes as a ring. The group must outlive it.
class TreeCollectives {
 public:
  TreeCollectives() = default;  // for one rank
  // Allocates the exchange buffer for operands of up to `most` elements that are cut evenly
  // (OwnCounts); if the parts are uneven, pass the number of ranks times the largest part.
  // RunError if the group's size is not a power of two.
  TreeCollectives(const comm::Collectives& group, const device::Stream& stream, Dtype dtype,
                  std::int64_t most);
  std::int64_t Bytes() const { return device::BytesOf(buffer_); }

  // Like comm::Collectives::StartReduceScatterInPlace, but complete on return. RunError if the
  // exchange buffer is too small for the largest of `counts`.
  void ReduceScatterInPlace(Dtype dtype, void* data, comm::Counts counts) const;
  // Like comm::Collectives::ReduceScatter.
  void ReduceScatter(Dtype dtype, const void* from, void* to, comm::Counts counts) const;
  // In place. `count` has no limit: operands larger than the exchange buffer travel in pieces.
  void AllReduce(Dtype dtype, void* data, std::int64_t count) const;

 private:
  void* Exchange(Dtype dtype, const void* from, const comm::Counts& counts) const;
  comm::Collectives group_;
  device::Stream stream_;
  device::Buffer buffer_;
  std::int64_t part_ = 0;  // buffer_: [ranks, part_] elements
};

// The order in which leaves' gradients are summed. Leaves arrive in the order of their groups 0, 1,
// ... (a power of two). Leaves of one group are added to one level of storage, and groups are
// summed in a perfect binary tree. As in a binary counter, group g uses level popcount(g), so there
// are log2(groups) + 1 levels. Missing groups count as zeros, which leave the sum's bits unchanged.
class LeafSums {
 public:
  // add(from, to): adds level `from` of the gradients to level `to`, then sets `from` to zero.
  using Merge = FunctionRef<void(int from, int to)>;
  // Returns the level to which a leaf of `group` adds its gradients. Merges earlier groups first,
  // which are now complete. RunError if `group` is less than in the previous call.
  int Enter(std::int64_t group, const Merge& add);
  void Finish(const Merge& add);           // merges all levels into level 0; group 0 may follow
  static int Levels(std::int64_t groups);  // log2(groups) + 1

 private:
  std::int64_t group_ = 0;  // the group that is being collected
};

// Sums the gradients of leaves (run.canonical) in the fixed tree of LeafSums, for each unit and
// phase on its own. Does nothing unless `canonical`.
class LeafGradients {
 public:
  // Which gradients of a unit a task adds to. kWhole: all. kEarly, kLate: of parameters with or
  // without `early`, if weight gradients are a separate task. kHead: the head's, of a tied table.
  enum class Phase { kWhole, kEarly, kLate, kHead };

  // registry: holds the gradients; must outlive this.
  LeafGradients(kernels::Registry& registry, const device::Stream& stream, bool canonical)
      : registry_(registry), stream_(stream), canonical_(canonical) {}

  // Announces that the next gradients of this unit and phase belong to a leaf of `group`. Groups
  // come in ascending order.
  void Enter(int unit, Phase phase, std::int64_t group);
  void Finish();  // completes the sums of a step

 private:
  struct Tracker {
    std::vector<Part> ranges;  // of the flat array of gradients
    LeafSums sums;
  };
  std::vector<Part> RangesOf(int unit, Phase phase) const;
  void Merge(const std::vector<Part>& ranges, int from, int to) const;

  kernels::Registry& registry_;
  device::Stream stream_;
  bool canonical_;
  std::map<std::pair<int, Phase>, Tracker> trackers_;  // by (unit, phase); made on first use
};

}  // namespace trireme::parallel
