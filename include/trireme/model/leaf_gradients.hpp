// Gradients of canonical leaves (run.canonical): each goes to the level of its group, and groups
// meet in the fixed tree (parallel::LeafSums). Nothing happens unless the model is canonical.
#ifndef TRIREME_MODEL_LEAF_GRADIENTS_HPP_
#define TRIREME_MODEL_LEAF_GRADIENTS_HPP_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "trireme/parallel/canonical.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::model {

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
  // Completes the sums of a step. Second gradients stay apart until AddSecond.
  void Finish();
  // Adds the second gradient of a tied table to its first, after the sums over the data group.
  void AddSecond() const;

 private:
  struct Tracker {
    std::vector<Part> ranges;  // flat
    parallel::LeafSums sums;
  };
  std::vector<Part> RangesOf(int unit, Phase phase) const;
  void Merge(const std::vector<Part>& ranges, int from, int to) const;

  kernels::Registry& registry_;
  device::Stream stream_;
  bool canonical_;
  std::map<std::pair<int, Phase>, Tracker> trackers_;  // of (unit, phase), as they come
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_LEAF_GRADIENTS_HPP_
