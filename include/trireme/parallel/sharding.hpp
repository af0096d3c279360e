// Sharding over the ranks that hold the same part of the model (ZeRO, Rajbhandari et al. 2020;
// fully sharded data parallelism, Zhao et al. 2023): who owns which elements, parameters gathered
// before they are used, gradients scattered to their owners.
#ifndef TRIREME_PARALLEL_SHARDING_HPP_
#define TRIREME_PARALLEL_SHARDING_HPP_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "trireme/base/defect.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/input/schema.hpp"
#include "trireme/parallel/shared_gradients.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::parallel {

struct ShardSetup {
  comm::Sharding sharding = comm::Sharding::kNone;
  int rank = 0, ranks = 1;  // place in the shard group, and its size
  int tensor_ranks = 1;     // ranks that have to cut the same pieces in spite of uneven slices
  std::int64_t bucket_bytes = 4 << 20;
  int prefetch = 1;       // units gathered ahead of their use
  bool overlap = true;    // false: every transfer is awaited where it starts
  bool canonical = false;  // gradients stay whole until the step's end
  int gradient_levels = 1;
};

// none: buckets of at least bucket_bytes, from the end, between parameters (or within one beyond
// MPI's count). optimizer: whole units, as many as make bucket_bytes, the same on all tensor ranks;
// the token table and its second gradient are pieces of their own. gradients, parameters: a unit a
// piece. A piece's owned elements are PartOf its length, cut on multiples of 32 elements.
tensor::Ownership PlanOwnership(const tensor::Registry& registry, Dtype dtype,
                                const ShardSetup& setup);

// The units of a rank's model where values or gradients are sharded; elsewhere every call returns at
// once.
class ShardedUnits {
 public:
  ShardedUnits() = default;  // nothing is sharded
  // `registry` was planned with PlanOwnership's result for this setup. `shared`: sums that a unit's
  // gradients need within the replica before they are scattered (null: none).
  ShardedUnits(const comm::Collectives& shard, tensor::Registry& registry,
               const device::Stream& stream, const ShardSetup& setup, SharedGradients* shared,
               Defect defect = Defect::kNone);

  // Bytes of what is gathered, and of whole gradients on their way to their owners, as Allocate
  // takes them. most_at_once: units other than blocks are kept in memory of their own; blocks share
  // prefetch + 1 buffers for values and two for gradients.
  std::int64_t GatherBytes() const;
  std::int64_t GradientBytes() const;
  void Allocate();

  // Collective calls, the same on all ranks of the shard group from here on.
  // The uses to come, in order: of all tasks up to the next call. Starts the first gathers.
  void BeginTasks(std::vector<int> uses);
  // The unit's values are whole until Done. Throws RunError where it is not the next use announced.
  void Use(int unit);
  void Done(int unit);
  // Gradients of the unit can be added to until EndGradient, which sends them on their way. Begun
  // again before its end, a unit goes on.
  void BeginGradient(int unit);
  void EndGradient(int unit);
  void Progress();  // chances for running transfers
  void BeginStep();  // owned gradients become zero
  // Returns when this step's owned gradients are summed over the shard group.
  void FinishGradients();
  // Values that are stored whole although their owners alone updated them: gathers them.
  void GatherUpdated();

  bool ValuesSharded() const { return values_sharded_; }
  bool GradientsSharded() const { return gradients_sharded_; }
  // Parameter of the first local gradient of this step that was not finite; empty: all were.
  const std::string& NotFinite() const { return not_finite_; }
  // Since construction: gathers used, and those that were complete when Use was called.
  std::int64_t Gathers() const { return gathers_; }
  std::int64_t GathersReady() const { return gathers_ready_; }
  double SecondsWaited() const { return seconds_waited_; }  // in all calls, since BeginStep

 private:
  // [private members as the implementation needs them]
  bool values_sharded_ = false, gradients_sharded_ = false;
  std::string not_finite_;
  std::int64_t gathers_ = 0, gathers_ready_ = 0;
  double seconds_waited_ = 0;
};

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_SHARDING_HPP_
