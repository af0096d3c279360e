// The network on one rank: the groups of ranks that compute together, the layers of this rank's
// stage, the registry of their parameters, and who holds what.
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
  // The part of a stage that a task runs.
  struct Chunk {
    std::vector<Block> blocks;
    std::vector<int> units;            // [blocks]: of the registry
    std::size_t encoders = 0;          // blocks of the encoder, which come first
    bool ends_encoder = false;         // the last of them is the encoder's last
    bool first = false, last = false;  // has the embedding, the head
    // Units of the embeddings and of the head; empty unless the chunk has them.
    std::vector<int> first_units, last_units;
  };

  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  const comm::ProcessGrid& Grid() const { return grid_; }
  const ModelPlan& Plan() const { return plan_; }
  const StagePlan& LocalPlan() const { return local_plan_; }
  const device::Stream& Stream() const { return stream_; }  // canonical if the plan is
  const parallel::TensorGroup& Tensor() const { return tensor_; }
  const parallel::RingAttention& Context() const { return context_; }

  const std::vector<Chunk>& Chunks() const { return chunks_; }
  const EmbeddingLayer& Embedding() const { return *embedding_; }
  const EmbeddingLayer& SourceEmbedding() const { return *source_embedding_; }
  // Of the encoder's output; pre-norm encoder-decoders only, in the unit of its last block.
  const NormLayer* EncoderNorm() const { return encoder_norm_ ? &*encoder_norm_ : nullptr; }
  const NormLayer* FinalNorm() const { return norm_ ? &*norm_ : nullptr; }  // pre-norm models only
  const HeadLayer& Head() const { return *head_; }
  kernels::Registry& Parameters() { return registry_; }
  const kernels::Registry& Parameters() const { return registry_; }

  // Units of the registry. -1: the model has no such unit.
  int TokenUnit() const { return token_unit_; }  // the token table
  int TailUnit() const { return tail_unit_; }    // final norm and head
  bool Has(int unit) const;                      // held by this rank
  // The held units whose values the program's tasks use, in order; until the next call.
  const std::vector<int>& UsesOf(const parallel::Program& program);

  void BeginStep();  // gradients become zero
  // The sharding of values and gradients.
  parallel::ShardedUnits& Units() { return *units_; }
  const parallel::ShardedUnits& Units() const { return *units_; }
  // The sums of gradients over the data group; of a model that learns.
  parallel::GradientBuckets& Buckets() { return *buckets_; }
  const parallel::GradientBuckets& Buckets() const { return *buckets_; }
  // Collective over the replicas, after the sums over the data group: gradients that several ranks
  // of the replica hold parts of (see kernels::GradientSum), then one rank's bits for all copies.
  void SumSharedGradients();

  // Blocks that this rank holds of every tensor of the model, for a checkpoint. Their values are
  // complete.
  std::vector<kernels::StateBlock> Blocks() const;
  // The linear layers of this rank's blocks, with weights that lie in one place and keep their
  // values within a step: none if they are gathered for each use (grid.sharding = parameters).
  std::vector<kernels::Linear> SteadyLayers() const;
  // Adds the bytes of parameters, gradients, and buffers of transfers.
  void AddMemory(device::MemoryTerms& memory) const;

 protected:
  // `grid` must outlive it. Parallelise follows.
  Network(const comm::ProcessGrid& grid, const ModelPlan& plan, const device::Stream& stream);
  ~Network() = default;
  // Collective over the grid's world. Makes the groups and the layers, decides who owns what, and
  // takes the memory of parameters and gradients. The sequence must fit the table of learned
  // positions.
  void Parallelise();
  // Collective over the grid's world: the initial weights. between: see ParallelModel.
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
  std::vector<int> uses_;  // of the last program

  std::unique_ptr<parallel::SharedGradients> shared_;
  std::unique_ptr<parallel::CopiedGradients> copied_;  // of a model that learns
  std::unique_ptr<parallel::ShardedUnits> units_;
  std::unique_ptr<parallel::GradientBuckets> buckets_;  // of a model that learns
};

}  // namespace trireme::model
