// The optimizer: norm and clipping of the owned gradients, and their update by a rule.
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

// The rule by which an optimizer turns gradients into updates: an interface with one implementation
// per method.

// The elements of one parameter that this rank updates.
struct OwnedParameter {
  const kernels::Parameter* parameter = nullptr;  // name and global shape
  // Range in the flattened global tensor; this rank's whole slice if parameters are kept whole
  // (NeedsWholeParameters).
  Part elements;
  std::int64_t moment = 0;  // place of the first one in storages of moments
  // Addresses: gradients, values (masters if there are any), copies; no moments, no decay.
  kernels::UpdateRange storage;
};

// A quantity that the rule keeps for each element from step to step.
struct Moment {
  std::string prefix;      // of the names in a checkpoint: "first_moment."
  device::Buffer storage;  // local, [owned elements], the registry's SumType, zero at first
};

class Rule {
 public:
  virtual ~Rule() = default;
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;

  // Sets of scalars that Update reads: one for each pass over elements that needs its own.
  virtual int ScalarSets() const { return 1; }
  // Adds the rule's own scalars for step number `step` (from 1). scalars: [ScalarSets()], all with
  // the step's learning rate and gradient scale at first.
  virtual void SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const = 0;
  // Updates all owned values. scalars: [ScalarSets()], in the stream's memory, so that a recorded
  // step replays with new ones. With `clear`, the owned gradients are zero afterwards.
  virtual void Update(const kernels::UpdateScalars* scalars, bool clear) = 0;

  const std::vector<Moment>& Moments() const { return moments_; }
  // Bytes of the moments. A rule with further memory overrides this and adds it.
  virtual std::int64_t Bytes() const;

 protected:
  // Allocates a moment for each prefix.
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

// Makes the rule that the options name. owned: copied; what it points to must outlive the rule.
std::unique_ptr<Rule> MakeRule(const OptimizerOptions& options,
                               const std::vector<OwnedParameter>& owned,
                               const kernels::Registry& registry, const device::Stream& stream);

// Whether the rule reads whole matrices. If so, sharding keeps each on one rank
// (model::ModelPlan::whole_parameters), and MakePlan refuses tensor ranks, which hold slices.
bool NeedsWholeParameters(OptimizerKind kind);

// The learning-rate schedule: a pure function of the step.

struct Schedule {
  std::int64_t steps = 0;    // of the whole run
  std::int64_t stop_at = 0;  // 0: at `steps`
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::kCosine;
  double peak = 1e-3;
  double decay_fraction = 0.2;  // wsd: share of the steps in the final, linear decay
  double final_fraction = 0.1;  // of the peak, at the last step
  double walltime_minutes = 0;  // 0: none

  // The step at which this invocation ends.
  std::int64_t Last() const { return stop_at > 0 && stop_at < steps ? stop_at : steps; }
  // Rate of step s = 1 .. steps: peak s / warmup_steps up to the warm-up's end, then the decay,
  // which reaches final_fraction * peak at s = steps.
  double Rate(std::int64_t step) const;
};

// The schedule with this peak rate. steps_of_epochs: length of a run of options.epochs, for decks
// that give no steps.
Schedule MakeSchedule(const ScheduleOptions& options, double peak, std::int64_t steps_of_epochs);

class Optimizer {
 public:
  // Allocates the rule's moments of the owned elements. `registry` must outlive the optimizer.
  Optimizer(const OptimizerOptions& options, kernels::Registry& registry,
            const device::Stream& stream);

  // On a GPU: queues the sums that GradientSquares adds up; nothing on the CPU.
  void QueueSquares();
  // Sum of squares of the owned gradients; elements that several ranks of a replica hold count on
  // the one whose copy is the first. On a GPU: of the last QueueSquares that the host has awaited.
  double GradientSquares() const;
  // The sum of GradientSquares, exactly.
  ExactSum ExactGradientSquares() const;
  // Name of the first parameter with an owned gradient that is not finite; empty: none.
  std::string FirstNotFinite() const;
  // Updates the values with the gradient of the mean loss, clipped to clip_norm. step: from 1.
  // gradient_norm: of the mean loss, over all ranks. count: targets in the mean. With `clear` all
  // gradients in storage are zero afterwards, as after Registry::ZeroGradients: owned elements in
  // the pass that updates them, the rest separately; early gradients are cleared when taken.
  void Step(std::int64_t step, double learning_rate, double gradient_norm, std::int64_t count,
            bool clear = false);

  // Rounds the owned masters into the values again, after a checkpoint was read; nothing if there
  // are no masters.
  void RoundMasters();

  // Moments for a checkpoint, named "<prefix><parameter>", moment by moment. rank of `ranks`: place
  // in the data group; sharers: consecutive ranks that share one copy.
  std::vector<kernels::StateBlock> Blocks(int rank, int ranks, int sharers) const;
  std::int64_t Bytes() const;  // of the moments, and of small buffers on a GPU

 private:
  void FindOwned();
  void FindUnowned();
  std::int64_t ScalarBytes() const;  // of the rule's sets of scalars
  OptimizerOptions options_;
  kernels::Registry* registry_;
  device::Stream stream_;
  std::vector<OwnedParameter> owned_;
  std::vector<kernels::FlatRange> counted_;  // of these, the gradients of first copies
  std::vector<Part> unowned_;                // rest of the gradients' storage, elements
  std::unique_ptr<Rule> rule_;
  device::Buffer squares_there_;  // on a GPU: [counted_], fp64
  device::PinnedBuffer squares_;  // the same on the host
  device::PinnedBuffer scalars_;  // of the last step
  device::Buffer scalars_there_;  // the same on a GPU
};

// The rules, one class per method.

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
