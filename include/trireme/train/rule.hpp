// The rule by which an optimizer turns gradients into updates: an interface with one implementation
// per method (adamw.cpp, sgd.cpp).
#ifndef TRIREME_TRAIN_RULE_HPP_
#define TRIREME_TRAIN_RULE_HPP_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/train/optimizer_options.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::train {

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
std::unique_ptr<Rule> MakeRule(const OptimizerOptions& options, const std::vector<OwnedParameter>& owned,
                               const kernels::Registry& registry, const device::Stream& stream);

// Whether the rule reads whole matrices. If so, sharding keeps each on one rank
// (model::ModelPlan::whole_parameters), and MakePlan refuses tensor ranks, which hold slices.
bool NeedsWholeParameters(OptimizerKind kind);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_RULE_HPP_
