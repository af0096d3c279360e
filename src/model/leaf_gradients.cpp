// LeafGradients: which ranges of the gradients a task adds to, and their sums over leaves.
#include "trireme/model/leaf_gradients.hpp"

#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::model {

// Flat ranges of the gradients that a phase of a unit's tasks adds to.
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

// Level `to` += level `from`, which becomes zero.
void LeafGradients::Merge(const std::vector<Part>& ranges, int from, int to) const {
  for (const Part& range : ranges) {
    const Dtype type = registry_.SumType();
    void* source = ElementAt(registry_.GradientLevel(from), type, range.begin);
    kernels::Accumulate(stream_, type, range.Size(), source,
                        ElementAt(registry_.GradientLevel(to), type, range.begin));
    device::SetZero(stream_, source, range.Size() * static_cast<std::int64_t>(SizeOf(type)));
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

void LeafGradients::AddSecond() const {
  const kernels::ParameterId id = registry_.SecondOf();
  if (id == kernels::kNoParameter) return;
  const kernels::Owned to = registry_.OwnedOf(id);
  const kernels::Parameter& parameter = registry_.Parameters().at(static_cast<std::size_t>(id));
  for (const kernels::Piece& piece : registry_.Owns().pieces) {
    if (piece.range.begin < registry_.SecondRange().begin || piece.own.Size() == 0) continue;
    if (piece.own.begin - registry_.Size() != to.flat.begin - parameter.offset ||
        piece.own.Size() < to.flat.Size()) {
      throw RunError("the two gradients of a tied table are owned differently",
                     "This is a bug in Trireme.");
    }
    const Dtype type = registry_.SumType();
    kernels::Accumulate(stream_, type, to.flat.Size(),
                        ElementAt(registry_.Gradients(), type, piece.gradient),
                        ElementAt(registry_.Gradients(), type, to.gradient));
  }
}

}  // namespace trireme::model
