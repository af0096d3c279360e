// The optimizer: norm and clipping of the owned gradients, the update of the owned values by a
// rule, and the learning-rate schedule.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/train/options.hpp"

namespace trireme::train {

// A rule turns gradients into updates: an interface with one implementation per method.

// The part of one parameter that this rank owns and updates.
struct OwnedParameter {
  const kernels::Parameter* parameter = nullptr;  // name and global shape
  // Range in the flattened global tensor; this rank's whole slice if the rule needs whole
  // parameters (NeedsWholeParameters).
  Part elements;
  std::int64_t moment = 0;  // offset of the first element in Moment::storage
  // Addresses of gradients, values (masters if any) and copies. Moments and decay are not set.
  kernels::UpdateRange storage;
};

// A quantity that a rule keeps for each element from step to step.
struct Moment {
  std::string prefix;      // of its names in a checkpoint: "first_moment."
  device::Buffer storage;  // [owned elements], the registry's SumType, zero at first
};

class Rule {
 public:
  virtual ~Rule() = default;
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;

  // Number of sets of scalars that Update reads: one per pass over elements that needs its own.
  virtual int ScalarSets() const { return 1; }
  // Sets the rule's own scalars for step `step` (from 1). scalars: [ScalarSets()]; learning rate
  // and gradient scale are already set.
  virtual void SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const = 0;
  // Updates all owned values. scalars: [ScalarSets()], in the stream's memory, so that a recorded
  // step can be replayed with new ones. clear: also zeroes the owned gradients.
  virtual void Update(const kernels::UpdateScalars* scalars, bool clear) = 0;

  const std::vector<Moment>& Moments() const { return moments_; }
  // Bytes of the moments. A rule with further memory overrides this and adds it.
  virtual std::int64_t Bytes() const;

 protected:
  // Allocates one moment per prefix.
  Rule(const kernels::Registry& registry, const device::Stream& stream,
       const std::vector<std::string>& prefixes);
  // Address of an element of moment number `which`.
  void* MomentAt(std::size_t which, std::int64_t element) const;
  const device::Stream& Stream() const { return stream_; }
  Dtype Type() const { return dtype_; }  // of gradients, moments and updated values

 private:
  device::Stream stream_;
  Dtype dtype_;
  std::vector<Moment> moments_;
};

// Makes the rule of options.kind. owned: copied, but what its elements point to must outlive it.
std::unique_ptr<Rule> MakeRule(const OptimizerOptions& options,
                               const std::vector<OwnedParameter>& owned,
                               const kernels::Registry& registry, const device::Stream& stream);

// Whether the rule needs whole matrices. If so, sharding keeps each matrix on one rank
// (model::ModelPlan::whole_parameters), and MakePlan refuses tensor ranks, which hold slices.
bool NeedsWholeParameters(OptimizerKind kind);

// The learning-rate schedule: a pure function of the step. `steps` is the length of the whole run,
// which `epochs` has decided if the deck leaves it open.
struct Schedule : ScheduleOptions {
  double peak = 1e-3;

  // The last step of this invocation.
  std::int64_t Last() const { return stop_at > 0 && stop_at < steps ? stop_at : steps; }
  // Learning rate of step s = 1 .. steps: peak s / warmup_steps during the warm-up, then the decay,
  // which reaches final_fraction * peak at s = steps (kConstant: peak).
  double Rate(std::int64_t step) const;
};

// The schedule with this peak rate. steps_of_epochs: steps of options.epochs, the length of the run
// unless options.steps is given.
Schedule MakeSchedule(const ScheduleOptions& options, double peak, std::int64_t steps_of_epochs);

class Optimizer {
 public:
  // Allocates the rule's moments for the owned elements. `registry` must outlive this.
  Optimizer(const OptimizerOptions& options, kernels::Registry& registry,
            const device::Stream& stream);

  // On a GPU, queues the sums of squares that GradientSquares reads; does nothing on the CPU.
  void QueueSquares();
  // Sum of squares of the owned gradients. An element of which a replica holds several copies
  // counts only on the rank with the first copy. On a GPU: result of the last awaited QueueSquares.
  double GradientSquares() const;
  // The same sum without rounding; on the CPU.
  ExactSum ExactGradientSquares() const;
  // Name of the first parameter whose owned gradient is not finite; empty: none.
  std::string FirstNotFinite() const;
  // Updates the values with the gradient of the mean loss, clipped to clip_norm. step: from 1.
  // gradient_norm: norm of that gradient over all ranks. count: targets in the mean. clear: also
  // zeroes all stored gradients, like Registry::ZeroGradients, the owned ones in the pass that
  // updates them; early gradients are zeroed when they are taken.
  void Step(std::int64_t step, double learning_rate, double gradient_norm, std::int64_t count,
            bool clear = false);

  // Rounds the owned masters (if any) into the values again, after a checkpoint was read.
  void RoundMasters();

  // Moments for a checkpoint, named "<prefix><parameter>", one moment after the other. rank, ranks:
  // data rank and number of data ranks; sharers: how many consecutive ones share one copy.
  std::vector<kernels::StateBlock> Blocks(int rank, int ranks, int sharers) const;
  std::int64_t Bytes() const;  // of the moments and of small buffers on a GPU

 private:
  void FindOwned();
  void FindUnowned();
  std::int64_t ScalarBytes() const;  // of the rule's sets of scalars
  OptimizerOptions options_;
  kernels::Registry* registry_;
  device::Stream stream_;
  std::vector<OwnedParameter> owned_;
  std::vector<kernels::FlatRange> counted_;  // owned gradients, of which this is the first copy
  std::vector<Part> unowned_;                // stored gradients not owned, as elements
  std::unique_ptr<Rule> rule_;
  device::Buffer squares_there_;  // on a GPU: sums of squares, [counted_], fp64
  device::PinnedBuffer squares_;  // their copy on the host
  device::PinnedBuffer scalars_;  // scalars of the last step, on the host
  device::Buffer scalars_there_;  // their copy on a GPU
};

// The rules follow, one class per method.

// Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).
class AdamW final : public Rule {
 public:
  AdamW(const OptimizerOptions& options, const std::vector<OwnedParameter>& owned,
        const kernels::Registry& registry, const device::Stream& stream);
  void SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const override;
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  double beta1_, beta2_, epsilon_;
  std::vector<kernels::UpdateRange> ranges_;  // one per owned parameter
};

// Gradient descent with decoupled weight decay; keeps no moments.
class Sgd final : public Rule {
 public:
  Sgd(const OptimizerOptions& options, const std::vector<OwnedParameter>& owned,
      const kernels::Registry& registry, const device::Stream& stream);
  void SetScalars(std::int64_t, std::span<kernels::UpdateScalars>) const override {}
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  std::vector<kernels::UpdateRange> ranges_;  // one per owned parameter
};

}  // namespace trireme::train
