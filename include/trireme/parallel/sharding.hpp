// Sharding over the ranks that hold the same part of the model (ZeRO, Rajbhandari et al. 2020;
// fully sharded data parallelism, Zhao et al. 2023): who owns which elements, parameters gathered
// before they are used, gradients scattered to their owners.
#ifndef TRIREME_PARALLEL_SHARDING_HPP_
#define TRIREME_PARALLEL_SHARDING_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/parallel/shared_gradients.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::parallel {

struct ShardSetup {
  comm::Sharding sharding = comm::Sharding::kNone;
  int rank = 0, ranks = 1;  // place in the shard group, and its size
  int tensor_ranks = 1;     // ranks that have to cut the same pieces in spite of uneven slices
  std::int64_t bucket_bytes = 4 << 20;
  bool whole_parameters = false;  // pieces are cut between parameters only
  int prefetch = 1;               // units gathered ahead of their use
  bool overlap = true;            // false: every transfer is awaited where it starts
  bool canonical = false;         // gradients stay whole until the step's end
  int gradient_levels = 1;
  bool training = true;  // false: there are no gradients
};

// Cuts the flat range into pieces, and each piece among the ranks. Pieces, by what is sharded:
//   none         buckets of at least bucket_bytes, from the end, between parameters (or within one
//                beyond MPI's count)
//   optimizer    whole units, as many as make bucket_bytes, the same on all tensor ranks; a table
//                with a second gradient or shared by two stages, and the second gradient, are
//                pieces of their own
//   gradients,
//   parameters   one piece per unit
// A rank owns PartOf a piece's length, cut on multiples of 32 elements; with whole_parameters, the
// parameters between the begins nearest to these cuts. dtype: in which bucket_bytes are counted.
// InputError if a piece passes what one transfer can carry: its count is an int.
tensor::Ownership PlanOwnership(const tensor::ParameterList& list, Dtype dtype,
                                const ShardSetup& setup);

class UnitGathers;
class UnitScatters;

// The units of a rank's model where values or gradients are sharded; elsewhere every call returns
// at once.
class ShardedUnits {
 public:
  ShardedUnits();  // nothing is sharded
  ShardedUnits(ShardedUnits&& other) noexcept;
  ShardedUnits& operator=(ShardedUnits&& other) noexcept;
  ShardedUnits(const ShardedUnits&) = delete;
  ShardedUnits& operator=(const ShardedUnits&) = delete;
  ~ShardedUnits();
  // Allocates memory for gathered values and for gradients that are collected. `registry` has
  // PlanOwnership's result for this setup. `shared`: sums that a unit's gradients need within the
  // replica before they are scattered (null: none). All referred to must outlive it.
  ShardedUnits(const comm::Collectives& shard, tensor::Registry& registry,
               const device::Stream& stream, const ShardSetup& setup, SharedGradients* shared);

  // Bytes of buffers for gathered values, and for whole gradients on their way to their owners.
  // Blocks share prefetch + 1 buffers of the largest one's size for values (one more
  // than there are blocks is the most that can be of use) and two for gradients; each other unit
  // has a buffer of its own for each.
  std::int64_t GatherBytes() const;
  std::int64_t GradientBytes() const;

  // Collective calls, the same on all ranks of the shard group from here on.
  // The uses to come, in order: of all tasks up to the next call; units that other ranks hold do
  // not count. Each is one gather. Starts the first gathers. Throws RunError where a use announced
  // before is not over.
  void BeginTasks(const std::vector<int>& uses);
  // The unit's values are whole until Done; a unit may be used again before that. Throws RunError
  // where it is not the next use announced, and for a block where the buffers of all are taken.
  void Use(int unit);
  void Done(int unit);
  // Gradients of the unit can be added to until EndGradient, which sends them on their way, in one
  // reduce-scatter. Begun again before its end, a unit goes on. Of blocks, two at once at most.
  void BeginGradient(int unit);
  void EndGradient(int unit);
  void Progress();   // chances for running transfers
  void BeginStep();  // owned gradients become zero where they are sharded
  // Returns when this step's owned gradients are summed over the shard group.
  void FinishGradients();
  // Values that are stored whole although their owners alone updated them: gathers them.
  void GatherUpdated();

  bool ValuesSharded() const { return gathers_ != nullptr; }
  bool GradientsSharded() const { return scatters_ != nullptr; }
  // Parameter of the first local gradient of this step that was not finite; empty: all were (or
  // they are not sharded, and GradientBuckets looks).
  const std::string& NotFinite() const;
  // Since construction: gathers used, and those that were complete when Use was called.
  std::int64_t Gathers() const;
  std::int64_t GathersReady() const;
  double SecondsWaited() const;  // for transfers over the shard group, in all calls since BeginStep

 private:
  comm::Collectives shard_;
  tensor::Registry* registry_ = nullptr;
  std::unique_ptr<UnitGathers> gathers_;    // null: values are not sharded
  std::unique_ptr<UnitScatters> scatters_;  // null: gradients are not sharded
  bool gathers_updated_ = false;
  std::vector<comm::Request> updates_;  // of GatherUpdated
  bool overlap_ = true;
  std::string all_finite_;  // empty
  double seconds_waited_ = 0, waited_before_ = 0;
};

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_SHARDING_HPP_
