// The optimizer: norm and clipping of the owned gradients, the update of the owned values by a
// rule, and the learning-rate schedule.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/base/function_ref.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/train/options.hpp"

namespace trireme::train {

// A rule turns gradients into updates: an interface with one implementation per method.

// The part of one parameter that this rank owns and updates.
struct OwnedParameter {
  kernels::ParameterId id = kernels::kNoParameter;
  const kernels::Parameter* parameter = nullptr;  // name and global shape
  // Range in the flattened global tensor; this rank's whole slice if the rule needs whole
  // parameters (NeedsWholeParameters).
  Part elements;
  std::int64_t moment =
      0;  // offset of the first element in storage that holds a moment of every parameter
  ParameterGroup group = ParameterGroup::kMatrices;
  // Addresses of gradients, values (masters if any) and copies; rate and decay of its group.
  // Moments are not set.
  kernels::UpdateRange storage;
};

// A quantity that a rule keeps for each element from step to step.
struct Moment {
  std::string prefix;      // of its names in a checkpoint: "first_moment."
  device::Buffer storage;  // [owned elements], the registry's SumType, zero at first
  // [parameters]: offset of the first owned element in `storage`; negative: the parameter has no
  // such moment. Empty: all have one, where OwnedParameter::moment says.
  std::vector<std::int64_t> places = {};
};

// What a rule is made of. owned: copied, but what its elements point to must outlive the rule.
// tensor: the ranks that hold the other slices of the same matrices.
struct RuleParts {
  const OptimizerOptions& options;
  const std::vector<OwnedParameter>& owned;
  const kernels::Registry& registry;
  const device::Stream& stream;
  const comm::Collectives& tensor;
};

// The group of optimizer.groups that has the parameter.
ParameterGroup GroupOf(const kernels::Registry& registry, kernels::ParameterId id);

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
  Rule(const RuleParts& parts, const std::vector<std::string>& prefixes);
  // Adds a moment for the parameters for which keeps(id) is true: the same ones on all ranks.
  void AddMoment(const RuleParts& parts, const std::string& prefix,
                 FunctionRef<bool(kernels::ParameterId)> keeps);
  // Address of the parameter's first element of moment number `which`.
  void* MomentAt(std::size_t which, const OwnedParameter& part) const;
  const device::Stream& Stream() const { return stream_; }
  Dtype Type() const { return dtype_; }  // of gradients, moments and updated values

 private:
  device::Stream stream_;
  Dtype dtype_;
  std::vector<Moment> moments_;
};

// Makes the rule of options.kind.
std::unique_ptr<Rule> MakeRule(const RuleParts& parts);

// Whether the rule needs whole matrices. If so, sharding keeps each tensor rank's slice of a matrix
// on one rank (model::ModelPlan::whole_parameters), and the rule gathers the slices.
bool NeedsWholeParameters(OptimizerKind kind);

// How many numbers the moments and the average have for an element: at least, as Muon's have one
// more for all parameters but hidden matrices.
int LeastState(const OptimizerOptions& options);

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
  // Allocates the rule's moments for the owned elements. `registry` must outlive this. tensor: the
  // tensor group, whose ranks own slices of the same parameters.
  Optimizer(const OptimizerOptions& options, kernels::Registry& registry,
            const device::Stream& stream, const comm::Collectives& tensor = {});

  // Drops elements of the owned gradients, where the step dropped those of the weights.
  void DropGradients(const kernels::WeightDropout& by);
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
  // gradient_norm: norm of that gradient over all ranks. Collective over the tensor group. count:
  // targets in the mean. clear: also zeroes all stored gradients, like Registry::ZeroGradients, the
  // owned ones in the pass that updates them. (Early ones are zero: see Registry::TakeEarly.)
  void Step(std::int64_t step, double learning_rate, double gradient_norm, std::int64_t count,
            bool clear = false);

  // Rounds the owned masters (if any) into the values again, after a checkpoint was read.
  void RoundMasters();

  // optimizer.average; without it, the next two have no effect. Step moves the average.
  // Sets the average to the owned weights, such as those of a checkpoint without an average.
  void FollowWeights();
  // Exchanges owned weights and average, and back: the same bits.
  void ExchangeAverage();

  // The average, if there is one, and moments for a checkpoint, named "<prefix><parameter>", one
  // moment after the other. rank, ranks: data rank and number of data ranks; sharers: how many
  // consecutive ones share one copy.
  std::vector<kernels::StateBlock> Blocks(int rank, int ranks, int sharers) const;
  std::int64_t Bytes() const;  // of average and moments, and of small buffers

 private:
  void FindOwned();
  void FindUnowned();
  void MakeAverage();
  // The share a_t of the weights of step `step` in the average: average += a_t (weight - average).
  double ShareOf(std::int64_t step) const;
  int ScalarSets() const;            // those of the rule, then one of the average
  std::int64_t ScalarBytes() const;  // of these sets
  OptimizerOptions options_;
  kernels::Registry* registry_;
  device::Stream stream_;
  std::vector<OwnedParameter> owned_;
  std::vector<kernels::FlatRange> counted_;  // owned gradients, if this is their first copy
  std::vector<Part> unowned_;                // elements of stored gradients that are not owned
  // The average of the weights; empty: none.
  Moment average_;
  std::vector<kernels::UpdateRange> averages_;  // values: average; gradients: weights
  device::Buffer exchanged_;                    // weights on the way to the average

  std::unique_ptr<Rule> rule_;
  device::Buffer squares_there_;  // on a GPU: sums of squares, [counted_], fp64
  device::PinnedBuffer squares_;  // their copy on the host
  device::PinnedBuffer scalars_;  // scalars of the last step, on the host
  device::Buffer scalars_there_;  // their copy on a GPU
};

// The rules follow, one class per method.

// The scalars of AdamW at a step.
struct AdamWScalars {
  double beta1, beta2, epsilon;
  void Set(std::int64_t step, kernels::UpdateScalars& scalars) const;
};

// Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).
class AdamW final : public Rule {
 public:
  explicit AdamW(const RuleParts& parts);
  void SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const override;
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  AdamWScalars scalars_;
  std::vector<kernels::UpdateRange> ranges_;  // one per owned parameter
};

// Gradient descent with decoupled weight decay. With a momentum, the update is v = momentum v + g
// (Sutskever et al. 2013, as PyTorch has it); else there are no moments.
class Sgd final : public Rule {
 public:
  explicit Sgd(const RuleParts& parts);
  int ScalarSets() const override { return gathers_.empty() ? 1 : 2; }
  void SetScalars(std::int64_t, std::span<kernels::UpdateScalars> scalars) const override;
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  std::vector<kernels::UpdateRange> ranges_;   // one per owned parameter
  std::vector<kernels::UpdateRange> gathers_;  // add gradients to momenta; empty: no momentum
};

// Signs of a momentum (Chen et al. 2023, algorithm 2).
class Lion final : public Rule {
 public:
  explicit Lion(const RuleParts& parts);
  void SetScalars(std::int64_t, std::span<kernels::UpdateScalars> scalars) const override;
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  double beta1_, beta2_;
  std::vector<kernels::UpdateRange> ranges_;  // one per owned parameter
};

// Muon (Jordan et al. 2024). A matrix of the blocks, [rows, columns], moves along the orthogonal
// matrix nearest to Nesterov's momentum, approached by optimizer.muon_iterations Newton-Schulz
// iterations, times 0.2 sqrt(max(rows, columns)), so that AdamW's rates and decays serve (Liu et
// al. 2025, section 2.2). All other parameters move by AdamW. The products are those of the run: of
// operands rounded to bf16, added up in fp32, with run.precision = bf16 and fp8.
// A tensor group puts each matrix together, and each of its ranks orthogonalises all of it, so
// that layouts compute the same; the owners of a shard group divide the matrices among them.
class Muon final : public Rule {
 public:
  explicit Muon(const RuleParts& parts);
  int ScalarSets() const override { return 4; }
  void SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const override;
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;
  std::int64_t Bytes() const override;

 private:
  enum Set { kAdam, kMomentum, kSums, kMove };  // the sets of scalars
  // A matrix of which this rank owns rows.
  struct Hidden {
    std::int64_t rows = 0, columns = 0;  // of the whole matrix
    std::int64_t begin = 0;              // this rank's first element in it
    bool counts = true;                  // false: an equal slice of another tensor rank is used
    kernels::UpdateRange momentum = {};  // momentum = mu momentum + (1 - mu) g
    kernels::UpdateRange ahead = {}, rest = {};  // slice = mu momentum; slice += (1 - mu) g
    kernels::UpdateRange move = {};              // updates the values by the slice
  };
  void Add(const OwnedParameter& part);
  void Allocate(bool rounds);  // rounds: products need copies (Operand)
  // A dense matrix at the beginning of scratch buffer `which`.
  kernels::Matrix Scratch(std::size_t which, std::int64_t rows, std::int64_t columns) const;
  void Fill(const Hidden& hidden, const kernels::UpdateScalars* scalars, bool clear) const;
  // What products multiply in place of a dense matrix: on a GPU in a bf16 run a rounded copy, else
  // the matrix itself, which a CPU's products round by themselves.
  enum Copy { kX, kSquare };
  kernels::Matrix Operand(Copy which, const kernels::Matrix& matrix) const;
  // to = (1 - decay) to + scale from, both dense; squares: if given, `from` is divided by its root.
  void Combine(double decay, double scale, const kernels::Matrix& from, const kernels::Matrix& to,
               const kernels::UpdateScalars* sums, const double* squares = nullptr) const;
  // Orthogonalises the matrix in scratch buffer 0; returns the matrix with the result.
  kernels::Matrix Orthogonalise(const Hidden& hidden, const kernels::UpdateScalars* sums) const;

  AdamWScalars adam_;
  double momentum_;
  int iterations_;
  comm::Collectives tensor_;
  std::vector<kernels::UpdateRange> others_;  // updated by AdamW
  std::vector<Hidden> hidden_;
  device::Buffer squares_;               // one sum of squares, fp64
  std::vector<device::Buffer> scratch_;  // two whole matrices, two squares of the shorter side
  std::vector<device::Buffer> rounded_;  // bf16 copies, by Copy; empty: none are needed
};

}  // namespace trireme::train
