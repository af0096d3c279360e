// A model spread over the ranks of one data replica: this rank's part of it, with the groups that
// the parts talk through.
#ifndef TRIREME_MODEL_PARALLEL_MODEL_HPP_
#define TRIREME_MODEL_PARALLEL_MODEL_HPP_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/defect.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/input/deck.hpp"
#include "trireme/model/model.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/shared_gradients.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

// Whether this many tensor ranks and stages (of `chunks` chunks) can share the model.
bool LayoutFits(const Options& options, int chunks, std::int64_t tensor, std::int64_t pipeline);

// InputError with the deck's line where the grid or the pipeline does not suit the model: heads,
// hidden features and vocabulary against grid.tensor, layers against stages and chunks. Names the
// nearest layouts of these ranks that do.
void CheckLayout(const input::Deck& deck, const Options& options, const comm::GridShape& grid,
                 const parallel::PipelineShape& pipeline);
// InputError where a step's micro-batches do not suit the schedule. share: windows of a data rank
// in a step; micro_batch: sequences at once.
void CheckMicroBatches(const input::Deck& deck, const parallel::PipelineShape& pipeline,
                       std::int64_t data_ranks, std::int64_t share, std::int64_t micro_batch);

class ParallelModel {
 public:
  // Collective over the grid's world. `setup` as for a whole model: its fields about parts are
  // filled in here. `grid` must outlive it. pipeline.micro_batches: the most in a step.
  ParallelModel(const comm::ProcessGrid& grid, ModelSetup setup,
                const parallel::PipelineShape& pipeline, Defect defect = Defect::kNone);
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;

  // Collective over the replica; all its ranks pass the same micro-batches.
  // As many micro-batches as Stages().Padded() says, empty ones among them.
  // Adds the gradients of the summed loss to the registry's. Returns the summed loss in nats on the
  // last stage's first tensor rank and 0 on others, so that a sum over the grid counts it once.
  double Train(std::span<const data::MicroBatch> batches, const GradientsReady& ready);
  // Evaluation: the summed loss, returned as above. losses (or null): [all rows of all batches],
  // one a target, filled on the last stage.
  double Loss(std::span<const data::MicroBatch> batches, double* losses = nullptr);
  // Logits behind position `position` of sequence 0, on every rank of the replica: [vocabulary].
  std::vector<double> Logits(const data::MicroBatch& batch, std::int64_t position);

  // Collective over the replica, after the sums over the data group: gradients that several ranks
  // of the replica hold parts of (see tensor::GradientSum).
  void SumSharedGradients();

  const comm::ProcessGrid& Grid() const { return grid_; }
  Model& Part() { return *part_; }
  const Model& Part() const { return *part_; }
  const ModelSetup& Setup() const { return part_->Setup(); }
  tensor::Registry& Parameters() { return part_->Parameters(); }
  const tensor::Registry& Parameters() const { return part_->Parameters(); }
  parallel::Pipeline& Stages() { return *pipeline_; }
  const parallel::Pipeline& Stages() const { return *pipeline_; }
  // This rank's blocks of every tensor of the model, for a checkpoint.
  std::vector<tensor::StateBlock> Blocks();
  // Terms in bytes: the part's, pipeline buffers, exchange buffers.
  std::vector<std::pair<std::string, std::int64_t>> MemoryPlan() const;

 private:
  double LossOnce() const;

  const comm::ProcessGrid& grid_;
  parallel::TensorGroup tensor_;
  comm::Communicator key_value_;  // tensor ranks that share a key/value head
  std::unique_ptr<parallel::Pipeline> pipeline_;
  std::unique_ptr<Model> part_;
  std::unique_ptr<parallel::SharedGradients> shared_;
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_PARALLEL_MODEL_HPP_
