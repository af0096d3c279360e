// Model: what the tasks tell about the use of parameters, a unit at a time, and where the gradients
// of canonical leaves go.
#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/model/model.hpp"

namespace trireme::model {

using parallel::TaskKind;

bool Model::Has(int unit) const {
  return unit >= 0 && registry_.Units()[static_cast<std::size_t>(unit)].range.Size() > 0;
}

std::array<int, 2> Model::FirstUnits() const { return {token_unit_, position_unit_}; }

std::array<int, 2> Model::LastUnits() const {
  return {tail_unit_, plan_.options.tie_embeddings ? token_unit_ : -1};
}

void Model::Use(std::span<const int> units) const {
  for (const int unit : units) {
    if (access_ != nullptr && Has(unit)) access_->Use(unit);
  }
}

void Model::Done(std::span<const int> units) const {
  for (const int unit : units) {
    if (access_ != nullptr && Has(unit)) access_->Done(unit);
  }
}

void Model::BeginGradient(std::span<const int> units) const {
  for (const int unit : units) {
    if (access_ != nullptr && Has(unit)) access_->BeginGradient(unit);
  }
}

void Model::EndGradient(std::span<const int> units) const {
  for (const int unit : units) {
    if (access_ != nullptr && Has(unit)) access_->EndGradient(unit);
  }
}

// The gradients from this unit on are final.
void Model::Report(int unit) const {
  if (ready_) ready_(registry_.Units()[static_cast<std::size_t>(unit)].range.begin);
}

void Model::UsesOf(const parallel::Task& task, std::vector<int>& uses) const {
  const Chunk& chunk = chunks_[static_cast<std::size_t>(task.chunk)];
  const auto append = [&](std::span<const int> units) {
    for (const int unit : units) {
      if (Has(unit)) uses.push_back(unit);
    }
  };
  const bool forward = task.kind == TaskKind::kForward || task.kind == TaskKind::kEvaluate;
  if (task.kind == TaskKind::kBackwardWeight) return;
  if (forward && chunk.first) append(FirstUnits());
  if (!forward && chunk.last) append(LastUnits());
  const auto before = static_cast<std::ptrdiff_t>(uses.size());
  append(chunk.parameters);
  if (!forward) std::reverse(uses.begin() + before, uses.end());
  if (task.kind == TaskKind::kEvaluate && chunk.last) append(LastUnits());
}

const std::vector<int>& Model::UsesOf(const parallel::Program& program) {
  uses_.clear();
  for (const parallel::Operation& operation : program.operations) {
    if (operation.action != parallel::Action::kCompute) continue;
    const auto at = static_cast<std::size_t>(operation.task);
    UsesOf(program.tasks[at].task, uses_);
  }
  return uses_;
}

// The ranges of the gradients that a phase of a unit's tasks adds to.
std::vector<Part> Model::RangesOf(int unit, Phase phase) const {
  if (phase == Phase::kWhole) return {registry_.Units()[static_cast<std::size_t>(unit)].range};
  if (phase == Phase::kHead) {
    const Part second = registry_.SecondRange();
    return {second.Size() > 0 ? second : registry_.Units()[static_cast<std::size_t>(unit)].range};
  }
  std::vector<Part> ranges;
  const auto& parameters = registry_.Parameters();
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    if (registry_.UnitOf(static_cast<ParameterId>(id)) != unit || !parameters[id].Held()) continue;
    if (parameters[id].early != (phase == Phase::kEarly)) continue;
    ranges.push_back({parameters[id].offset, parameters[id].offset + parameters[id].LocalSize()});
  }
  return ranges;
}

void Model::Merge(const std::vector<Part>& ranges, int from, int to) const {
  for (const Part& range : ranges) {
    const Dtype type = registry_.SumType();
    void* source = ElementAt(registry_.GradientLevel(from), type, range.begin);
    kernels::Accumulate(with_.stream, type, range.Size(), source,
                        ElementAt(registry_.GradientLevel(to), type, range.begin));
    device::SetZero(with_.stream, source, range.Size() * static_cast<std::int64_t>(SizeOf(type)));
  }
}

// Canonical: the gradients of this phase go to the level of the leaf's group.
void Model::EnterLeaf(int unit, Phase phase, const Pass& pass) {
  if (!local_.shard.canonical || pass.Dry() || !Has(unit)) return;
  const auto [at, added] = trackers_.try_emplace({unit, phase});
  Tracker& tracker = at->second;
  if (added) tracker.ranges = RangesOf(unit, phase);
  const int level = tracker.sums.Enter(pass.batch->group,
                                       [&](int from, int to) { Merge(tracker.ranges, from, to); });
  registry_.BindGradientLevel(unit, level);
}

void Model::FinishLeaves() {
  for (auto& entry : trackers_) {
    Tracker& tracker = entry.second;
    tracker.sums.Finish([&](int from, int to) { Merge(tracker.ranges, from, to); });
    registry_.BindGradientLevel(entry.first.first, 0);
  }
}

void Model::AddSecondGradient() {
  const tensor::ParameterId id = registry_.SecondOf();
  if (id == tensor::kNoParameter) return;
  const tensor::Owned to = registry_.OwnedOf(id);
  for (const tensor::Piece& piece : registry_.Owns().pieces) {
    if (piece.range.begin < registry_.SecondRange().begin || piece.own.Size() == 0) continue;
    if (piece.own.begin - registry_.Size() !=
            to.flat.begin - registry_.Parameters().at(static_cast<std::size_t>(id)).offset ||
        piece.own.Size() < to.flat.Size()) {
      throw RunError("the two gradients of a tied table are owned differently",
                     "This is a bug in Trireme.");
    }
    const Dtype type = registry_.SumType();
    kernels::Accumulate(with_.stream, type, to.flat.Size(),
                        ElementAt(registry_.Gradients(), type, piece.gradient),
                        ElementAt(registry_.Gradients(), type, to.gradient));
  }
}

}  // namespace trireme::model
