// A training set-up on a grid of ranks: model, optimizer, gradient sums and the step, built
// together. The trainer, the verification and the tests all train through it.
#ifndef TRIREME_TRAINING_TRAINING_STATE_HPP_
#define TRIREME_TRAINING_TRAINING_STATE_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/sampler.hpp"
#include "trireme/job/job.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/optimizer/optimizer.hpp"
#include "trireme/optimizer/schedule.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/training/state_on_host.hpp"
#include "trireme/training/training_step.hpp"

namespace trireme::training {

struct TrainingSetup {
  model::ModelSetup model;  // micro_batch: as wanted; the largest share bounds it
  std::int64_t stride = 0;  // of windows; 0: their length
  std::int64_t batch = 1;   // windows a step, over all ranks
  optimizer::Options optimizer;
  optimizer::Schedule schedule;
  std::int64_t bucket_bytes = 4 << 20;
  int prefetch = 1;                  // units gathered ahead
  bool overlap = true;               // transfers while the backward pass goes on
  bool keep_gradients = true;        // behind a step; else the update clears them as it goes
  bool graphs = false;               // run.graphs
  std::string products_file;         // run.products; empty: choices are kept nowhere
  parallel::PipelineShape pipeline;  // schedule and chunks; the rest follows
  model::Canonical canonical;        // run.canonical
  // Ranks that share this one's memory: what they plan is checked before it is allocated. Null: it
  // is not.
  const comm::Communicator* node = nullptr;
};

// Elements of the largest operand of a linear layer's products, of a micro-batch or a weight.
std::int64_t LargestOperand(const model::ModelSetup& setup);

// What a job on a GPU needs there besides the model: the libraries' memory, and fp8 operands as
// they are reserved. Nothing on the CPU.
void AddGpuTerms(const model::ModelSetup& setup,
                 std::vector<std::pair<std::string, std::int64_t>>& plan);

// Windows of the data rank with the largest share of a batch, and its micro-batches.
std::int64_t LargestShare(std::int64_t batch, int data_ranks, const model::Canonical& canonical);
std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch,
                          const model::Canonical& canonical = {});

// run.canonical and run.canonical_leaf; `batch`: the most windows of a step. InputError with the
// deck's line where the layout or the model does not suit it.
void DeclareCanonical(input::Schema& schema);
model::Canonical ReadCanonical(const input::Deck& deck, const model::Options& options,
                               const comm::GridShape& grid, std::int64_t batch,
                               std::int64_t length);
// InputError where a micro-batch that the deck gives is not of whole leaves.
void CheckLeaves(const input::Deck& deck, const model::Canonical& canonical);
// Collective. AgreedError where the ranks' processors have not one instruction set: their row
// kernels would round differently.
void CheckInstructionSets(const comm::Communicator& world);
// Leaves of one of the data_groups, of a batch of this size; and the positions in the batch that
// this data rank takes (some may lie behind its end).
std::int64_t LeavesOfGroup(std::int64_t batch, const model::Canonical& canonical);
Part CanonicalShare(std::int64_t batch, int rank, int data_ranks,
                    const model::Canonical& canonical);

// What the deck asks for on this grid, with a token file of this vocabulary and so many training
// tokens. InputError with the deck's line, also where the layout does not suit the model.
TrainingSetup ReadTraining(job::Job& job, const comm::GridShape& grid, std::int64_t vocabulary,
                           std::int64_t tokens);

// "pipeline 2 x data 2 x context 1 x tensor 1; 1f1b, 8 micro-batches; recompute full".
std::string DescribeLayout(const comm::ProcessGrid& grid, const TrainingSetup& setup,
                           std::int64_t micro_batches);

class TrainingState {
 public:
  // Collective over the grid's world. `grid` and `tokens` must outlive it.
  TrainingState(const comm::ProcessGrid& grid, const data::TokenFile& tokens,
                const TrainingSetup& setup);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  // Collective. Step number `step` (from 0); see TrainingStep.
  StepResult Run(std::int64_t step, const Requests& mine = {});

  const comm::ProcessGrid& Grid() const { return grid_; }
  const data::Sampler& Samples() const { return sampler_; }
  model::ParallelModel& Net() { return *model_; }
  const model::ParallelModel& Net() const { return *model_; }
  optimizer::Optimizer& Moments() { return *optimizer_; }
  parallel::GradientBuckets& Buckets() { return *buckets_; }

  // Bytes of this rank, by term.
  std::vector<std::pair<std::string, std::int64_t>> MemoryPlan() const;

  // Blocks for a checkpoint, as they are now: parameters, moments.
  StateOnHost ModelBlocks();
  StateOnHost OptimizerBlocks() const;
  StateOnHost GradientBlocks() const;  // the last step's sums, likewise
  // Collective over the grid's world: parameters and moments of a checkpoint folder.
  void Load(const std::string& checkpoint);
  void LoadWeights(const std::string& checkpoint);  // parameters alone

 private:
  void CheckMemory(const TrainingSetup& setup) const;
  StateOnHost Unfetched(std::vector<tensor::StateBlock> blocks) const;
  std::vector<tensor::StateBlock> MomentBlocks() const;  // where they are
  const comm::ProcessGrid& grid_;
  data::Sampler sampler_;
  std::unique_ptr<model::ParallelModel> model_;
  std::unique_ptr<optimizer::Optimizer> optimizer_;
  optimizer::Schedule schedule_;
  std::unique_ptr<parallel::GradientBuckets> buckets_;
  std::unique_ptr<TrainingStep> step_;
  device::Drain drain_;  // before any of the above goes
};

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_TRAINING_STATE_HPP_
