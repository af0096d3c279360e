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
// in a step; micro_batch: sequences at once; unit: those of which it has to be a multiple.
void CheckMicroBatches(const input::Deck& deck, const parallel::PipelineShape& pipeline,
                       std::int64_t data_ranks, std::int64_t share, std::int64_t micro_batch,
                       std::int64_t unit = 1);

// run.canonical = DxT (doc/numerics.md): data_groups x slices; none: 0.
struct Canonical {
  int data_groups = 0;    // D, groups of leaves
  int slices = 0;         // T, of heads, hidden features and vocabulary
  std::int64_t leaf = 0;  // sequences that are always computed together
  bool On() const { return data_groups > 0; }
  bool operator==(const Canonical&) const = default;
};

class ParallelModel {
 public:
  // Collective over the grid's world. `setup` as for a whole model: its fields about parts are
  // filled in here; of setup.shard, bucket_bytes, prefetch and overlap are read. `grid` must
  // outlive it. pipeline.micro_batches: the most in a step. With setup.allocate == false it only
  // plans.
  ParallelModel(const comm::ProcessGrid& grid, ModelSetup setup,
                const parallel::PipelineShape& pipeline, const Canonical& canonical = {});
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;

  // Collective over the replica; all its ranks pass the same micro-batches.
  // As many micro-batches as Stages().Padded() says, Setup().leaves entries each, empty ones among
  // them. Where values or gradients are sharded, as many on all ranks of the shard group.
  // Adds the gradients of the summed loss to the registry's. Returns the summed loss in nats of
  // this rank's tokens on the last stage's first tensor rank and 0 on others, so that a sum over
  // the grid counts it once.
  ExactSum Train(std::span<const data::MicroBatch> batches, const GradientsReady& ready);
  // The same in two: queued, and its loss, for which a GPU's host waits. The batches outlive both.
  void StartTrain(std::span<const data::MicroBatch> batches, const GradientsReady& ready);
  ExactSum FinishLoss();
  // Of the next StartTrain's batches: their copy to a GPU starts; they take their place there. For
  // steps that are recorded or prepared ahead; StartTrain does both where nobody did.
  void Prepare(std::span<const data::MicroBatch> batches) { part_->Prepare(batches); }
  void Take(std::span<const data::MicroBatch> batches) { part_->Take(batches); }
  int MemoryVersion() const { return part_->MemoryVersion(); }
  // What StartTrain queued was queued once more, for these batches.
  void Repeated(std::span<const data::MicroBatch> batches) { part_->Repeated(batches); }
  // Evaluation: the summed loss, returned as above. losses (or null): [all rows of all batches],
  // one a target, filled on the last stage.
  ExactSum Loss(std::span<const data::MicroBatch> batches, double* losses = nullptr);
  // Logits behind position `position` of sequence 0, on every rank of the replica: [vocabulary].
  std::vector<double> Logits(const data::MicroBatch& batch, std::int64_t position);

  // Collective over the replica, after the sums over the data group: gradients that several ranks
  // of the replica hold parts of (see tensor::GradientSum).
  void SumSharedGradients();
  void BeginStep();  // gradients become zero
  void Allocate();   // what was only planned
  // The sharding of values and gradients.
  parallel::ShardedUnits& Units() { return *units_; }
  const parallel::ShardedUnits& Units() const { return *units_; }
  parallel::SharedGradients& Shared() { return *shared_; }
  const Canonical& Canon() const { return canonical_; }
  // Positions of each sequence that this rank holds.
  Positions Held() const { return context_.Own(); }

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
  // Terms in bytes: the part's, gather and gradient buffers of sharding, exchange buffers.
  std::vector<std::pair<std::string, std::int64_t>> MemoryPlan() const;

 private:
  std::int64_t LengthHere(const ModelSetup& setup) const;  // positions of a sequence
  std::int64_t StreamRows(const ModelSetup& setup) const;  // of an entry
  int MicroBatches(std::span<const data::MicroBatch> batches) const;
  void Announce(const parallel::Program& program);
  void Evaluate(std::span<const data::MicroBatch> batches);
  data::MicroBatch LocalPart(const data::MicroBatch& batch) const;
  std::pair<int, std::int64_t> Find(std::int64_t position) const;

  const comm::ProcessGrid& grid_;
  Canonical canonical_;
  parallel::TensorGroup tensor_;
  parallel::RingAttention context_;
  comm::Communicator key_value_;  // tensor ranks that share a key/value head
  device::Event done_;            // on a GPU: what was queued
  std::unique_ptr<comm::Channel> key_value_channel_;
  std::unique_ptr<parallel::Pipeline> pipeline_;
  std::unique_ptr<Model> part_;
  std::unique_ptr<parallel::SharedGradients> shared_;
  std::unique_ptr<parallel::ShardedUnits> units_;
  device::Drain drain_;  // before any of the above goes
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_PARALLEL_MODEL_HPP_
