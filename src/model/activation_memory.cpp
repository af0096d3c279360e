// ActivationMemory: sizes from dry passes, then one allocation, cut up.
#include "trireme/model/activation_memory.hpp"

#include <algorithm>

namespace trireme::model {

ActivationMemory::ActivationMemory(const ModelPlan& plan, const StagePlan& local,
                                   const StageLayers& layers)
    : training_(plan.training) {
  const bool recomputes = plan.options.recompute != Recompute::kNone;
  for (std::size_t i = 0; i < local.chunks.size(); ++i) {
    chunks_.emplace_back(layers.Chunks()[i].blocks, local.slots[i], plan.leaves, recomputes);
  }
}

void ActivationMemory::Measure(MakeWorkspace workspace, TrainDry train, EvaluateDry evaluate) {
  device::Arena shared = device::Arena::Measuring(), scratch = device::Arena::Measuring(),
                evaluation = device::Arena::Measuring();
  const Matrix tile = workspace(shared).tile;
  tile_bytes_ = tile.rows * tile.stride * static_cast<std::int64_t>(SizeOf(tile.dtype));
  std::int64_t slots = 0;
  for (int chunk = 0; chunk < static_cast<int>(chunks_.size()); ++chunk) {
    evaluate(chunk, evaluation);
    if (!training_) continue;
    train(chunk, scratch);
    slots += Chunk(chunk).Bytes();
  }
  workspace_bytes_ = shared.Peak();
  scratch_bytes_ = scratch.Peak();
  bytes_ = workspace_bytes_ + std::max(scratch_bytes_ + slots, evaluation.Peak());
}

void ActivationMemory::Allocate(device::Kind where, MakeWorkspace workspace) {
  storage_ = device::AllocateZeroed(bytes_, where);
  char* begin = static_cast<char*>(storage_.get());
  device::Arena shared(begin, workspace_bytes_);
  workspace_ = workspace(shared);
  begin += workspace_bytes_;
  evaluation_scratch_.emplace(begin, bytes_ - workspace_bytes_);
  if (!training_) return;
  training_scratch_.emplace(begin, scratch_bytes_);
  begin += scratch_bytes_;
  for (ChunkActivations& chunk : chunks_) begin = chunk.Cut(begin);
}

device::Arena* ActivationMemory::Scratch(bool training) {
  std::optional<device::Arena>& scratch = training ? training_scratch_ : evaluation_scratch_;
  return scratch ? &*scratch : nullptr;
}

}  // namespace trireme::model
