// A model spread over the ranks of one data replica: this rank's part of it, with the groups that
// the parts talk through.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/process_grid.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/model.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/shared_gradients.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

class ParallelModel {
 public:
  // Collective over the grid's world. Takes all memory and draws the initial weights. `grid` must
  // outlive it. between (may be empty) is called on all ranks about every second of the drawing,
  // equally often, and may throw an AgreedError.
  ParallelModel(const comm::ProcessGrid& grid, const ModelPlan& plan, const device::Stream& stream,
                const std::function<void()>& between = {});
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;
  ~ParallelModel();

  // A training pass is collective over the replica, whose ranks pass the same batches:
  // Stages().Padded() micro-batches of Plan().leaves entries each, some perhaps empty; if values or
  // gradients are sharded, the same number on all ranks of the shard group. Four calls, so that
  // batches can be prepared during a computation and graphs recorded: Batches().Stage (starts the
  // copy to a GPU), Batches().Take (queues the copy into place; not part of a graph), StartTrain
  // (queued), FinishLoss (waits). The batches outlive all four.
  StagedBatches& Batches() { return local_->Batches(); }
  // Adds the gradients of the summed loss to the registry's.
  void StartTrain(StagedBatches::Taken taken, const GradientsReady& ready);
  // The summed loss in nats of this rank's tokens on the last stage's first tensor rank and 0 on
  // others, so that a sum over the grid counts it once.
  ExactSum FinishLoss();
  // Evaluation: summed loss, as of FinishLoss. losses (or null): [rows of all batches], one per
  // target, filled on the last stage's first tensor rank.
  ExactSum Loss(std::span<const data::Entry> batches, double* losses = nullptr);
  void QueueLoss(std::span<const data::Entry> batches,
                 double* losses = nullptr);  // FinishLoss waits
  // Logits of the token after position `position` of sequence 0, on every rank of the replica:
  // [types], or [vocabulary] if their number is not known.
  std::vector<double> Logits(const data::Entry& batch, std::int64_t position);

  // Collective over the replica, as Logits; only with plan.cache_slots. Keeps keys and values of
  // the batches (Stages().Padded() of them, some perhaps empty; if values are sharded, the same
  // number on all ranks of the shard group) at these places, and returns the logits asked for,
  // [sequences, vocabulary], on the ranks of the last stage; nothing on others; valid until the
  // next call. A batch of length 1 has ContinuedEntry's form. With plan.thin_panels
  // Local().PackWeights() comes before the first call.
  const std::vector<double>& CachedLogits(std::span<const data::Entry> batches,
                                          std::span<const CachedPlaces> places);
  // An entry of one more token for each of some sequences, at its own position.
  data::Entry ContinuedEntry(std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> positions) const;

  // Collective over the replicas, after the sums over the data group: gradients that several ranks
  // of the replica hold parts of (see kernels::GradientSum), then one rank's bits for all copies.
  void SumSharedGradients();
  void BeginStep();  // gradients become zero
  // The sharding of values and gradients.
  parallel::ShardedUnits& Units() { return *units_; }
  const parallel::ShardedUnits& Units() const { return *units_; }
  // The sums of gradients over the data group; of a model that learns.
  parallel::GradientBuckets& Buckets() { return *buckets_; }
  const parallel::GradientBuckets& Buckets() const { return *buckets_; }

  const comm::ProcessGrid& Grid() const { return grid_; }
  const ModelPlan& Plan() const { return plan_; }
  const StagePlan& LocalPlan() const { return local_plan_; }
  const device::Stream& Stream() const { return stream_; }  // canonical if the plan is
  Model& Local() { return *local_; }
  const Model& Local() const { return *local_; }
  StageLayers& Layers() { return *layers_; }
  kernels::Registry& Parameters() { return layers_->Parameters(); }
  const kernels::Registry& Parameters() const { return layers_->Parameters(); }
  parallel::Pipeline& Stages() { return *pipeline_; }
  const parallel::Pipeline& Stages() const { return *pipeline_; }
  // Blocks that this rank holds of every tensor of the model, for a checkpoint. Their values are
  // complete.
  std::vector<kernels::StateBlock> Blocks() const;
  // The linear layers of this rank's blocks, with weights that lie in one place and keep their
  // values within a step: none if they are gathered for each use (grid.sharding = parameters).
  std::vector<kernels::Linear> SteadyLayers() const;
  ModelMemory Memory() const;  // of this rank

 private:
  void Parallelise();
  void DrawWeights(const std::function<void()>& between);
  int MicroBatches(std::span<const data::Entry> batches) const;
  void Announce(const parallel::Program& program);
  void Progress();
  void Evaluate(std::span<const data::Entry> batches);
  void AwaitQueue();
  data::Entry LocalPart(const data::Entry& batch) const;
  std::pair<int, std::int64_t> Find(std::int64_t position) const;

  const comm::ProcessGrid& grid_;
  const ModelPlan plan_;
  const StagePlan local_plan_;
  const device::Stream stream_;
  parallel::TensorGroup tensor_;
  parallel::RingAttention context_;
  comm::Communicator key_value_;  // tensor ranks that share a key/value head
  std::unique_ptr<comm::Channel> key_value_channel_;
  device::Event done_;  // on a GPU: end of the queued work
  std::unique_ptr<parallel::Pipeline> pipeline_;
  std::unique_ptr<StageLayers> layers_;
  std::unique_ptr<parallel::SharedGradients> shared_;
  std::unique_ptr<parallel::CopiedGradients> copied_;  // of a model that learns
  std::unique_ptr<parallel::ShardedUnits> units_;
  std::unique_ptr<parallel::GradientBuckets> buckets_;  // of a model that learns
  std::unique_ptr<Model> local_;
  std::vector<double> cached_logits_;  // of CachedLogits
  device::Drain drain_;                // destroyed first
};

}  // namespace trireme::model
