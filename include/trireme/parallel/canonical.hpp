// Sums in the fixed tree of run.canonical, so that no layout changes a bit (doc/reference/numerics.md): over
// the ranks of a group, and over leaves that one rank meets one by one.
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

// run.canonical = DxT (doc/reference/numerics.md): the cut of the work that every layout shares.
struct Canonical {
  int data_groups = 0;    // D, groups of leaves; 0: canonical arithmetic is off
  int slices = 0;         // T, of heads, hidden features and vocabulary
  std::int64_t leaf = 0;  // sequences that are always computed together
  bool On() const { return data_groups > 0; }
  bool operator==(const Canonical&) const = default;
};

// Adds up arrays in the perfect binary tree over their number, a power of two: ((0 + 1) + (2 + 3))
// + ... buffer: [arrays, count]; array 0 becomes the sum, the others are lost.
void TreeSum(const device::Stream& stream, Dtype dtype, void* buffer, int arrays,
             std::int64_t count);

// Sums over the ranks of a group, a power of two, in that tree: parts are exchanged, added by one
// rank each and gathered. Moves as many bytes as a ring. The group must outlive it.
class TreeCollectives {
 public:
  TreeCollectives() = default;  // one rank
  // Allocates the exchange buffer for operands of up to `most` elements in parts of nearly equal
  // size (PartOf, on multiples of up to 32 elements); for others, pass ranks times the largest part
  // to come. RunError if the group's size is no power of two.
  TreeCollectives(const comm::Collectives& group, const device::Stream& stream, Dtype dtype,
                  std::int64_t most);
  std::int64_t Bytes() const { return device::BytesOf(buffer_); }

  // Like comm::Collectives::StartReduceScatterInPlace, complete on return. RunError if the buffer
  // is too small for the largest of `counts`.
  void ReduceScatterInPlace(Dtype dtype, void* data, comm::Counts counts) const;
  // Like comm::Collectives::ReduceScatter.
  void ReduceScatter(Dtype dtype, const void* from, void* to, comm::Counts counts) const;
  // In place, of any length: operands that exceed the buffer travel in pieces.
  void AllReduce(Dtype dtype, void* data, std::int64_t count) const;

 private:
  void* Exchange(Dtype dtype, const void* from, const comm::Counts& counts) const;
  comm::Collectives group_;
  device::Stream stream_;
  device::Buffer buffer_;
  std::int64_t part_ = 0;  // elements of a rank's part in the buffer, [ranks, part_]
};

// Order of sums of leaves' gradients. Leaves arrive by groups 0, 1, ... (a power of two of them),
// in order; within a group each leaf is added to its storage, and groups meet in the perfect binary
// tree. As in a binary counter, group g is collected in level popcount(g), so that log2(groups) + 1
// levels suffice. Missing groups count as zeros, which change no bit of a sum that began at zero.
class LeafSums {
 public:
  // add(from, to): level `to` += level `from`, and `from` becomes zero, of one range of gradients.
  using Merge = FunctionRef<void(int from, int to)>;
  // Returns the level for the gradients of a leaf of `group`; merges the groups complete before it.
  // RunError for a group below the last one.
  int Enter(std::int64_t group, const Merge& add);
  void Finish(const Merge& add);           // merges all into level 0; ready for group 0 again
  static int Levels(std::int64_t groups);  // log2(groups) + 1

 private:
  std::int64_t group_ = 0;  // the one being collected
};

// Gradients of canonical leaves (run.canonical): each goes to the level of its group, and groups
// meet in the fixed tree (LeafSums). Nothing happens unless the model is canonical.
class LeafGradients {
 public:
  // The gradients of a unit that a task adds to: all; the `early` ones or the others, if weight
  // gradients are a task of their own; those of a tied table by the head.
  enum class Phase { kWhole, kEarly, kLate, kHead };

  // registry: of the gradients; must outlive this.
  LeafGradients(kernels::Registry& registry, const device::Stream& stream, bool canonical)
      : registry_(registry), stream_(stream), canonical_(canonical) {}

  // The next gradients of this unit and phase are those of a leaf of `group`. Groups come in order.
  void Enter(int unit, Phase phase, std::int64_t group);
  void Finish();  // completes the sums of a step

 private:
  struct Tracker {
    std::vector<Part> ranges;  // flat
    LeafSums sums;
  };
  std::vector<Part> RangesOf(int unit, Phase phase) const;
  void Merge(const std::vector<Part>& ranges, int from, int to) const;

  kernels::Registry& registry_;
  device::Stream stream_;
  bool canonical_;
  std::map<std::pair<int, Phase>, Tracker> trackers_;  // of (unit, phase), as they come
};

}  // namespace trireme::parallel
