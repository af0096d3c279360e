// The layers of one rank's part of a model, and the registry of their parameters.
#ifndef TRIREME_MODEL_STAGE_LAYERS_HPP_
#define TRIREME_MODEL_STAGE_LAYERS_HPP_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/model/block.hpp"
#include "trireme/model/embedding_layer.hpp"
#include "trireme/model/head_layer.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/parallel/pipeline_program.hpp"

namespace trireme::model {

class StageLayers {
 public:
  struct Chunk {
    std::vector<Block> blocks;
    std::vector<int> units;            // [blocks]: of the registry
    std::size_t encoders = 0;          // blocks of the encoder, which come first
    bool ends_encoder = false;         // the last of them is the encoder's last
    bool first = false, last = false;  // has the embedding, the head
  };

  // Lists all parameters of the model, in its order, on every rank, those of other stages without
  // memory; decides who owns what, takes memory for parameters and gradients, and draws the initial
  // weights. The sequence must fit the table of learned positions.
  StageLayers(const ModelPlan& plan, const StagePlan& local, const parallel::TensorGroup& tensor,
              const device::Stream& stream);
  StageLayers(const StageLayers&) = delete;
  StageLayers& operator=(const StageLayers&) = delete;

  const std::vector<Chunk>& Chunks() const { return chunks_; }
  const EmbeddingLayer& Embedding() const { return *embedding_; }
  const EmbeddingLayer& SourceEmbedding() const { return *source_embedding_; }
  // Of the encoder's output; pre-norm models that translate only, in the unit of its last block.
  const NormLayer* EncoderNorm() const { return encoder_norm_ ? &*encoder_norm_ : nullptr; }
  const NormLayer* FinalNorm() const { return norm_ ? &*norm_ : nullptr; }  // pre-norm models only
  const HeadLayer& Head() const { return *head_; }
  kernels::Registry& Parameters() { return registry_; }
  const kernels::Registry& Parameters() const { return registry_; }

  // Units of the registry. -1: the model has no such unit.
  int TokenUnit() const { return token_unit_; }  // the token table
  int TailUnit() const { return tail_unit_; }    // final norm and head
  std::array<int, 4> FirstUnits() const;         // of the embeddings
  std::array<int, 2> LastUnits() const;          // of the head
  bool Has(int unit) const;                      // held by this rank
  // The held units whose values the program's tasks use, in order; until the next call.
  const std::vector<int>& UsesOf(const parallel::Program& program);

 private:
  kernels::ParameterList ListParameters(const ModelPlan& plan, const StagePlan& local,
                                       const parallel::TensorGroup& tensor,
                                       const device::Stream& stream);
  void AddBlocks(const ModelPlan& plan, const StagePlan& local, ParameterPlace place);
  void AppendUses(const parallel::Task& task);

  kernels::Registry registry_;
  bool tied_;
  std::optional<EmbeddingLayer> embedding_, source_embedding_;
  std::vector<Chunk> chunks_;
  std::optional<NormLayer> norm_, encoder_norm_;
  std::optional<HeadLayer> head_;
  int token_unit_ = -1, position_unit_ = -1, tail_unit_ = -1;
  int source_unit_ = -1, source_position_unit_ = -1;  // of tables of their own
  std::vector<int> uses_;                             // of the last program
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_STAGE_LAYERS_HPP_
