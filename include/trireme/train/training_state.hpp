// State of a training run on one rank: model, moments and gradient sums, and the collective tasks
// of a step that change them. Training, verification, plans and tests all go through it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/memory_terms.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/train/optimizer.hpp"
#include "trireme/train/training_plan.hpp"

namespace trireme::train {

// Blocks of training state on the host, for checkpoints and verification: the blocks themselves on
// a CPU, copies of them on a GPU.
class StateOnHost {
 public:
  // blocks: in the stream's memory, which must outlive this. Host copies have the type of sums
  // (SumTypeOf): fp32 for bf16.
  StateOnHost(const device::Stream& stream, std::vector<kernels::StateBlock> blocks);
  StateOnHost Fetch() &&;  // copies the device's contents in
  void Store() const;      // copies the host's contents out

  const std::vector<kernels::StateBlock>& Blocks() const { return here_; }
  operator const std::vector<kernels::StateBlock>&() const {  // NOLINT(google-explicit-constructor)
    return here_;
  }
  const kernels::StateBlock& operator[](std::size_t i) const { return here_[i]; }
  // NOLINTNEXTLINE(readability-identifier-naming): as containers have it
  std::size_t size() const { return here_.size(); }

 private:
  device::Stream stream_;
  std::vector<kernels::StateBlock> there_, here_;
  device::Buffer memory_;  // of here_; none on the CPU
};

// State for a checkpoint: on a GPU, blocks in the type of sums that are read from the device in
// pieces, so that no copy of all is needed.
checkpoint::State StateToRead(const device::Stream& stream, std::vector<kernels::StateBlock> model,
                              std::vector<kernels::StateBlock> optimizer);

class TrainingState {
 public:
  // Collective over the grid's world. Takes all memory and draws the initial weights; on a planned
  // grid and stream it takes none. `grid` must outlive it. between: as of model::ParallelModel.
  TrainingState(const comm::ProcessGrid& grid, const TrainingPlan& plan,
                const device::Stream& stream, const std::function<void()>& between = {});
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  const comm::ProcessGrid& Grid() const { return grid_; }
  const TrainingPlan& Plan() const { return plan_; }
  const device::Stream& Stream() const { return model_.Stream(); }
  model::ParallelModel& Net() { return model_; }
  const model::ParallelModel& Net() const { return model_; }
  // Share of every batch that this data rank takes.
  BatchShare Share() const;
  device::MemoryTerms Memory() const;  // bytes of all buffers, without the tokens

  // Collective tasks of a step, in this order.
  // Gradients of the taken entries, summed over the micro-batches; sums over the data group start
  // with the last one. The gradients are complete on return on a CPU, queued on a GPU, as are the
  // sums of QueueSums.
  void QueueGradients(model::StagedBatches::Taken entries);
  // Completes the sums over the data group and within the replica.
  void QueueSums();
  // Parameter of a local gradient that was not finite; empty: none was.
  const std::string& NotFinite() const;
  // Sum over the world of what the ranks agree on before weights change: flags and times, and the
  // digits of the loss.
  enum Agreed : std::size_t {
    kBad,     // something is not finite
    kUnread,  // the batch could not be read
    kSignal,
    kWalltime,
    kCheckpoint,
    kBusy,
    kTotal,  // seconds, as the next four
    kData,
    kCompute,
    kExposed,
    kBubble,
    kLossDigits
  };
  static constexpr std::size_t kAgreed = kLossDigits + ExactSum::kNumbers;
  void Agree(std::array<double, kAgreed>& sums) const;
  // Replaces counts of this rank's part of a batch by those of the whole batch: the sums over the
  // ranks that hold other windows or positions. Below 2^53 each.
  static constexpr std::size_t kCounts = 2;
  void SumOfBatch(std::array<std::int64_t, kCounts>& counts) const;
  // Norm of the gradient of the mean loss over `targets`, before clipping: the same on
  // every rank, but where it is not finite.
  double GradientNorm(std::int64_t targets) const;
  // Parameter of an owned gradient, summed over the ranks, that is not finite; empty: none.
  std::string FirstNotFinite() const { return optimizer_->FirstNotFinite(); }
  // Clips, updates what this rank owns, and starts to gather what others updated, which the next
  // step's forward pass waits for unit by unit. step counts from 1.
  void Update(std::int64_t step, double learning_rate, double norm, std::int64_t targets);
  // Not collective: completes the gathers of Update, for those who read values otherwise than by a
  // pass of the model.
  void FinishUpdate() { model_.Units().FinishUpdated(); }
  // Parameter with an element that is not finite on this rank; empty: none, or they lie on a GPU.
  std::string FirstParameterNotFinite();
  // fp8: agrees on the scales of the next step.
  void UpdateScales();

  // Content of a checkpoint, wherever it lies; valid as long as this is, its values as they are
  // when they are read, after FinishUpdate.
  checkpoint::State CheckpointState();
  // State that replicas hold alike: the stored values (model), then masters, if there are any, and
  // moments (optimizer), each a list of all parameters. Valid as CheckpointState() is.
  checkpoint::State ReplicatedState();
  // Sums of a step's gradients over its targets (model), from QueueSums to Update; valid likewise.
  checkpoint::State GradientState() const;
  // Blocks as they are now: parameters, moments, sums of the last step's gradients.
  StateOnHost ModelBlocks();
  StateOnHost OptimizerBlocks() const;
  StateOnHost GradientBlocks() const;
  // Collective over the grid's world: parameters and moments of a checkpoint folder; moments become
  // zero if it has none, as that of an imported model. between: as of
  // checkpoint::ReadTensors.
  void Load(const std::string& checkpoint, const std::function<void()>& between = {});
  // The same from any source: `fill` is called for the blocks of "model" and of "optimizer", on all
  // ranks.
  using Fill =
      std::function<void(const char* file, const std::vector<kernels::StateBlock>& blocks)>;
  void Load(const Fill& fill);
  // Parameters alone.
  void LoadWeights(const std::string& checkpoint, const std::function<void()>& between = {});
  // Collective over the grid's world: blocks of ModelBlocks() that were changed on the host.
  void StoreWeights(const StateOnHost& weights);

 private:
  // In the stream's memory: moments, and sums of gradients.
  std::vector<kernels::StateBlock> MomentBlocks() const;
  std::vector<kernels::StateBlock> SumBlocks() const;

  const comm::ProcessGrid& grid_;
  const TrainingPlan plan_;
  model::ParallelModel model_;
  std::unique_ptr<Optimizer> optimizer_;
  device::Drain drain_;  // ends before any of the above does
};

// Elements of the largest operand of a linear layer's products: of a micro-batch or a weight.
std::int64_t LargestOperand(const model::ModelPlan& plan);

// Bytes of a model by purpose, with what a GPU's libraries take beside it.
device::MemoryTerms MemoryOf(const model::ParallelModel& model);

// Collective. Throws AgreedError unless all ranks' processors have one instruction set, which
// run.canonical needs: row kernels would round differently.
void CheckInstructionSets(const comm::Communicator& world);

}  // namespace trireme::train
