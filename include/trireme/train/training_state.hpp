// The state of a training run on one rank: model, moments and sums of gradients, with the
// collective tasks of a step that change them. Training, verification, plans and tests all use it.
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

// Blocks of training state in the host's memory, for checkpoints and verification. On a CPU these
// are the blocks themselves; on a GPU they are copies.
class StateOnHost {
 public:
  // blocks: in the stream's memory, which must outlive this. Copies of bf16 blocks are fp32.
  StateOnHost(const device::Stream& stream, std::vector<kernels::StateBlock> blocks);
  StateOnHost Fetch() &&;  // copies the contents from the device
  void Store() const;      // copies the contents to the device

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

// State for a checkpoint. On a GPU its blocks are in the type of sums (SumTypeOf) and are read from
// the device in pieces, so that no full copy is needed.
checkpoint::State StateToRead(const device::Stream& stream, std::vector<kernels::StateBlock> model,
                              std::vector<kernels::StateBlock> optimizer);

class TrainingState {
 public:
  // Collective over the grid's world. Allocates all memory and draws the initial weights; does
  // neither if grid and stream are planned, that is, only count. `grid` must outlive this. between:
  // as in model::ParallelModel.
  TrainingState(const comm::ProcessGrid& grid, const TrainingPlan& plan,
                const device::Stream& stream, const std::function<void()>& between = {});
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  const comm::ProcessGrid& Grid() const { return grid_; }
  const TrainingPlan& Plan() const { return plan_; }
  const device::Stream& Stream() const { return model_.Stream(); }
  model::ParallelModel& Net() { return model_; }
  const model::ParallelModel& Net() const { return model_; }
  // This data rank's share of every batch.
  BatchShare Share() const;
  device::MemoryTerms Memory() const;  // bytes of all buffers, except tokens

  // The collective tasks of a step, in this order. Computes the gradients of `entries`, summed over
  // the micro-batches; sums over the data group start during the last micro-batch. When this or
  // QueueSums returns, the work is complete on a CPU and queued on a GPU.
  void QueueGradients(model::StagedBatches::Taken entries);
  // Completes the sums of gradients over the data group and within the replica. step: from 0.
  void QueueSums(std::int64_t step);
  // Name of a parameter whose local gradient was not finite; empty: none.
  const std::string& NotFinite() const;
  // Sums over the world what the ranks must agree on before the weights change: flags, times, and
  // the digits of the loss. Indices of `sums`:
  enum Agreed : std::size_t {
    kBad,     // something is not finite
    kUnread,  // a rank could not read its batch
    kSignal,
    kWalltime,
    kCheckpoint,
    kBusy,
    kTotal,  // seconds, like the next four
    kData,
    kCompute,
    kExposed,
    kBubble,
    kLossDigits
  };
  static constexpr std::size_t kAgreed = kLossDigits + ExactSum::kNumbers;
  void Agree(std::array<double, kAgreed>& sums) const;
  // Replaces counts for this rank's part of a batch by those for the whole batch: sums over the
  // ranks that hold other windows or positions. Each is below 2^53.
  static constexpr std::size_t kCounts = 2;
  void SumOfBatch(std::array<std::int64_t, kCounts>& counts) const;
  // Norm of the gradient of the mean loss over `targets`, before clipping. The same on every rank,
  // except that it may be finite on some ranks only.
  double GradientNorm(std::int64_t targets) const;
  // Name of the first parameter whose owned, summed gradient is not finite; empty: none.
  std::string FirstNotFinite() const { return optimizer_->FirstNotFinite(); }
  // Clips gradients, updates what this rank owns, and starts to gather what others have updated;
  // the next forward pass waits for that unit by unit. step: from 1.
  void Update(std::int64_t step, double learning_rate, double norm, std::int64_t targets);
  // Completes the gathers of Update, for code that reads values outside a pass. Not collective.
  void FinishUpdate() { model_.Units().FinishUpdated(); }
  // optimizer.average: whether there is an average of the weights, and an exchange of both: before
  // an evaluation, and after it back to the same bits. Collective over the grid's world.
  bool Averages() const { return plan_.options.optimizer.average > 0; }
  void ExchangeAverage();
  // Name of a parameter with an element on this rank that is not finite; empty: none. Not on a GPU.
  std::string FirstParameterNotFinite();
  // fp8: the ranks agree on the scales of the next step.
  void UpdateScales();

  // The content of a checkpoint, in the memory of host or device. Call FinishUpdate first. Valid as
  // long as this object; values are those at the time of reading.
  checkpoint::State CheckpointState();
  // The state that several ranks may hold. In State::model: stored values; in State::optimizer:
  // masters, if any, then moments, each of all parameters. Valid like CheckpointState().
  checkpoint::State ReplicatedState();
  // A step's gradients summed over its targets, in State::model; exists from QueueSums to Update.
  checkpoint::State GradientState() const;
  // Blocks with their present contents: parameters, moments, sums of the last step's gradients.
  StateOnHost ModelBlocks();
  StateOnHost OptimizerBlocks() const;
  StateOnHost GradientBlocks() const;
  // Reads parameters and moments from a checkpoint folder. Collective over the grid's world.
  // Moments become zero if it has none, like that of an imported model; the average becomes the
  // weights if it has none. between: as in checkpoint::ReadTensors.
  void Load(const std::string& checkpoint, const std::function<void()>& between = {});
  // The same from any source: all ranks call `fill` for the blocks of "model", then of "optimizer".
  // has_average: whether the source has an average.
  using Fill =
      std::function<void(const char* file, const std::vector<kernels::StateBlock>& blocks)>;
  void Load(const Fill& fill, bool has_average);
  // Reads weights only, as checkpoint::ReadWeights. Returns whether they are averages.
  bool LoadWeights(const std::string& checkpoint, const std::function<void()>& between = {});
  // Stores blocks of ModelBlocks() that were changed on the host. Collective over the grid's world.
  void StoreWeights(const StateOnHost& weights);

 private:
  // Moments and sums of gradients in the stream's memory.
  std::vector<kernels::StateBlock> MomentBlocks() const;
  std::vector<kernels::StateBlock> SumBlocks() const;

  const comm::ProcessGrid& grid_;
  const TrainingPlan plan_;
  model::ParallelModel model_;
  std::unique_ptr<Optimizer> optimizer_;
  device::Drain drain_;  // destroyed before all members above
};

// Elements of the largest operand of a linear layer: a micro-batch's activations or a weight.
std::int64_t LargestOperand(const model::ModelPlan& plan);

// Bytes of a model by purpose, including the memory of a GPU's libraries.
device::MemoryTerms MemoryOf(const model::ParallelModel& model);

// Collective over `world`. Throws AgreedError unless all ranks use one instruction set, as
// run.canonical needs: kernels for different sets round differently.
void CheckInstructionSets(const comm::Communicator& world);

}  // namespace trireme::train
