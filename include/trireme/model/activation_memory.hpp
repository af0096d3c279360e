// All memory of a rank's activations, in one piece that is planned before anything is allocated:
// no step takes memory.
#ifndef TRIREME_MODEL_ACTIVATION_MEMORY_HPP_
#define TRIREME_MODEL_ACTIVATION_MEMORY_HPP_

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/model/chunk_activations.hpp"
#include "trireme/model/stage_layers.hpp"

namespace trireme::model {

// First the workspace, then scratch and slots of training; evaluation, which never runs while slots
// are in use, has all memory after the workspace.
class ActivationMemory {
 public:
  ActivationMemory(const ModelPlan& plan, const StagePlan& local, const StageLayers& layers);

  using MakeWorkspace = FunctionRef<Workspace(device::Arena& arena)>;
  using TrainDry = FunctionRef<void(int chunk, device::Arena& scratch)>;
  using EvaluateDry = FunctionRef<void(int chunk, device::Arena& scratch)>;
  // Measures the allocations of the largest micro-batch in arenas that hand out no memory; sets
  // Bytes().
  void Measure(MakeWorkspace workspace, TrainDry train, EvaluateDry evaluate);
  std::int64_t Bytes() const { return bytes_; }
  std::int64_t TileBytes() const { return tile_bytes_; }  // of these, the vocabulary's tile
  // Takes the memory, once, after Measure.
  void Allocate(device::Kind where, MakeWorkspace workspace);

  // Scratch that all layers share; valid after Allocate.
  const Workspace& Shared() const { return workspace_; }
  // Scratch of a task; null before Allocate.
  device::Arena* Scratch(bool training);
  ChunkActivations& Chunk(int chunk) { return chunks_[static_cast<std::size_t>(chunk)]; }

 private:
  bool training_;
  std::vector<ChunkActivations> chunks_;
  std::int64_t workspace_bytes_ = 0, scratch_bytes_ = 0, bytes_ = 0, tile_bytes_ = 0;
  device::Buffer storage_;  // workspace, scratch, slots
  std::optional<device::Arena> training_scratch_, evaluation_scratch_;
  Workspace workspace_;
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_ACTIVATION_MEMORY_HPP_
