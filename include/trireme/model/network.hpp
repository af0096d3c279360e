// Network: the groups of ranks that compute together, the layers of this rank's stage, and the
// registry of their parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trireme/comm/process_grid.hpp"
#include "trireme/device/memory_terms.hpp"
#include "trireme/model/block.hpp"
#include "trireme/model/embedding_layer.hpp"
#include "trireme/model/head_layer.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/ring_attention.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/parallel/shared_gradients.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

class Network {
 public:
  // The part of a stage that one task runs.
  struct Chunk {
    std::vector<Block> blocks;
    std::vector<int> units;            // [blocks]: their units in the registry
    std::size_t encoders = 0;          // encoder blocks; they come first
    bool ends_encoder = false;         // contains the encoder's last block
    bool first = false, last = false;  // contains the embedding; contains the head
    // Units of the embeddings (first) and of the head (last); empty unless in this chunk.
    std::vector<int> first_units, last_units;
  };

  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  const comm::ProcessGrid& Grid() const { return grid_; }
  const ModelPlan& Plan() const { return plan_; }
  const StagePlan& LocalPlan() const { return local_plan_; }
  const device::Stream& Stream() const { return stream_; }  // its `canonical` is the plan's
  const parallel::TensorGroup& Tensor() const { return tensor_; }
  const parallel::RingAttention& Context() const { return context_; }

  const std::vector<Chunk>& Chunks() const { return chunks_; }
  const EmbeddingLayer& Embedding() const { return *embedding_; }
  const EmbeddingLayer& SourceEmbedding() const { return *source_embedding_; }
  // Norm of the encoder's output; null except in pre-norm encoder-decoders. It belongs to the unit
  // of the encoder's last block.
  const NormLayer* EncoderNorm() const { return encoder_norm_ ? &*encoder_norm_ : nullptr; }
  const NormLayer* FinalNorm() const { return norm_ ? &*norm_ : nullptr; }  // null if post-norm
  const HeadLayer& Head() const { return *head_; }
  kernels::Registry& Parameters() { return registry_; }
  const kernels::Registry& Parameters() const { return registry_; }

  // Numbers of units in the registry; -1: there is none.
  int TokenUnit() const { return token_unit_; }  // unit of the token table
  int TailUnit() const { return tail_unit_; }    // unit of final norm and head
  bool Has(int unit) const;                      // whether this rank holds it
  // The units held here whose values the program's tasks use, in order; valid until the next call.
  const std::vector<int>& UsesOf(const parallel::Program& program);

  void BeginStep();  // clears the gradients
  // Sharding of values and gradients.
  parallel::ShardedUnits& Units() { return *units_; }
  const parallel::ShardedUnits& Units() const { return *units_; }
  // Sums of gradients over the data group; only if plan.training.
  parallel::GradientBuckets& Buckets() { return *buckets_; }
  const parallel::GradientBuckets& Buckets() const { return *buckets_; }
  // Sums gradients of which several ranks of a replica hold terms (kernels::GradientSum); then all
  // copies take one rank's bits. Collective over the replica, after the sums over the data group.
  void SumSharedGradients();

  // For a checkpoint: this rank's block of each tensor of the model, after gathers have ended.
  std::vector<kernels::StateBlock> Blocks() const;
  // The linear layers of this rank's blocks, if their weights keep place and value during a step;
  // empty if they are gathered for each use (grid.sharding = parameters).
  std::vector<kernels::Linear> SteadyLayers() const;
  // Adds the bytes of parameters, gradients, and buffers of transfers.
  void AddMemory(device::MemoryTerms& memory) const;

 protected:
  // grid must outlive this. Call Parallelise next.
  Network(const comm::ProcessGrid& grid, const ModelPlan& plan, const device::Stream& stream);
  ~Network() = default;
  // Makes groups and layers, decides which rank owns what, and allocates parameters and gradients.
  // Collective over the grid's world. Sequences must fit the table of learned positions.
  void Parallelise();
  // Draws the initial weights. Collective over the grid's world. between: see ParallelModel.
  void DrawWeights(const std::function<void()>& between);

 private:
  kernels::ParameterList ListParameters();
  void AddEmbeddings(const ParameterPlace& place);
  void AddBlocks(ParameterPlace place);
  void AppendUses(const parallel::Task& task);
  void AddSecondGradient() const;

  const comm::ProcessGrid& grid_;
  const ModelPlan plan_;
  const StagePlan local_plan_;
  const device::Stream stream_;
  parallel::TensorGroup tensor_;
  parallel::RingAttention context_;
  comm::Communicator key_value_;  // tensor ranks that share a key/value head
  std::unique_ptr<comm::Channel> key_value_channel_;

  kernels::Registry registry_;
  std::optional<EmbeddingLayer> embedding_, source_embedding_;
  std::vector<Chunk> chunks_;
  std::optional<NormLayer> norm_, encoder_norm_;
  std::optional<HeadLayer> head_;
  int token_unit_ = -1, tail_unit_ = -1;
  std::vector<int> uses_;  // result of UsesOf

  std::unique_ptr<parallel::SharedGradients> shared_;
  std::unique_ptr<parallel::CopiedGradients> copied_;  // null unless plan.training
  std::unique_ptr<parallel::ShardedUnits> units_;
  std::unique_ptr<parallel::GradientBuckets> buckets_;  // null unless plan.training
};

}  // namespace trireme::model
