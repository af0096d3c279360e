// Sharding over the ranks that hold the same part of the model (ZeRO, Rajbhandari et al. 2020;
// fully sharded data parallelism, Zhao et al. 2023): each element has an owner, parameters are
// gathered before use, and gradients are reduce-scattered to their owners.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/parallel/shared_gradients.hpp"

namespace trireme::parallel {

// Even cuts fall on multiples of kCut elements, so parts begin on a cache line, as parameters do.
inline constexpr std::int64_t kCut = 32;

// The part that rank `rank` of `ranks` owns if `length` elements are cut evenly.
inline Part OwnPart(std::int64_t length, int rank, int ranks) {
  return comm::PartOfGrains(length, kCut, rank, ranks);
}

// Elements that each rank owns of `length` elements, cut evenly, or of a piece.
inline comm::Counts OwnCounts(std::int64_t length) { return comm::Counts::Cut(length, kCut); }
inline comm::Counts OwnCounts(const kernels::Piece& piece) {
  if (piece.counts.empty()) return OwnCounts(piece.range.Size());
  return {piece.counts};
}

struct ShardSetup {
  comm::Sharding sharding = comm::Sharding::kNone;
  int rank = 0, ranks = 1;  // this rank in the shard group; its size
  int tensor_ranks = 1;     // tensor ranks, which must all cut the same pieces
  std::int64_t bucket_bytes = 4 << 20;
  bool whole_parameters = false;  // ranks own whole parameters
  int prefetch = 1;               // units gathered before their use
  bool overlap = true;            // false: each transfer is awaited at once
  bool canonical = false;         // gradients are whole until the step ends
  int gradient_levels = 1;
  bool training = true;     // false: there are no gradients
  bool first_stage = true;  // false: a token table here belongs to the head
};

// Cuts the flat range of parameters into pieces, and each piece among the ranks. The pieces depend
// on setup.sharding:
//   none         buckets of at least bucket_bytes, formed from the end; cut between parameters,
//                within one only if it exceeds an MPI count
//   optimizer    groups of whole units of at least bucket_bytes, the same on all tensor ranks; a
//                token table that has a second gradient or that two stages share is a piece of its
//                own, and so is the second gradient
//   gradients,
//   parameters   one piece per unit
// Each rank owns an even part (OwnPart) of a piece; with whole_parameters, these cuts move to the
// nearest parameter's begin. dtype: the type of the gradients that bucket_bytes counts.
kernels::Ownership PlanOwnership(const kernels::ParameterList& list, Dtype dtype,
                                 const ShardSetup& setup);

// Throws InputError if a piece is too large for one transfer, whose count is an int. owns: the
// result of PlanOwnership with any sharding but none.
void CheckTransfers(const kernels::ParameterList& list, const kernels::Ownership& owns);

class UnitGathers;
class UnitScatters;

// The transfers of a rank's units if values, gradients or moments are sharded; if nothing is
// sharded, every call returns at once.
class ShardedUnits {
 public:
  ShardedUnits();  // for a model that is not sharded
  ShardedUnits(ShardedUnits&& other) noexcept;
  ShardedUnits& operator=(ShardedUnits&& other) noexcept;
  ShardedUnits(const ShardedUnits&) = delete;
  ShardedUnits& operator=(const ShardedUnits&) = delete;
  ~ShardedUnits();
  // Allocates buffers for gathered values and for whole gradients. The ownership in `registry` is
  // PlanOwnership's for this setup. shared: sums within the replica that come before a unit's
  // gradients are scattered; null: none. All arguments but `setup` must outlive this.
  ShardedUnits(const comm::Collectives& shard, kernels::Registry& registry,
               const device::Stream& stream, const ShardSetup& setup, SharedGradients* shared);

  // Bytes of the buffers for gathered values, and for whole gradients before they are scattered.
  // Blocks share prefetch + 1 buffers for values (at most the number of blocks + 1) and two for
  // gradients, each of the largest block's size; every other unit has one buffer of each kind.
  std::int64_t GatherBytes() const;
  std::int64_t GradientBytes() const;
  // Most bytes that Open MPI 4 allocates for sums of gradients under way, on the rank where it
  // allocates most; on a GPU 0.
  std::int64_t LibraryBytes() const;

  // The calls from here to GatherUpdated are collective over the shard group.
  // Announces which units will be used, in order, until the next call, and starts the first
  // gathers. Each use is one gather; units that this rank does not hold are skipped. RunError if an
  // earlier use is still open.
  void BeginTasks(const std::vector<int>& uses);
  // Makes the unit's values whole until Done; uses of one unit may be nested. If values are
  // sharded, RunError if this is not the next announced use, or if a block finds no free buffer.
  void Use(int unit);
  void Done(int unit);
  // BeginGradient opens the unit's gradients for additions; EndGradient closes them and starts
  // their reduce-scatter. A second Begin before the End has no effect. At most two blocks are open.
  void BeginGradient(int unit);
  void EndGradient(int unit);
  void Progress();   // lets running transfers progress
  void BeginStep();  // zeroes the owned gradients, if gradients are sharded
  // Waits until this step's owned gradients are summed over the shard group.
  void FinishGradients();
  // Starts to gather values that are stored whole but that only their owners have updated. Use
  // waits for the values of its unit, FinishUpdated for all. Until then, values must stay
  // untouched.
  void GatherUpdated();
  void FinishUpdated();          // not collective
  void LeaveUpdated() noexcept;  // as FinishUpdated, before the values are freed; waits at most 10
                                 // s if an exception is in flight

  bool ValuesSharded() const { return gathers_ != nullptr; }
  bool GradientsSharded() const { return scatters_ != nullptr; }
  // Name of the first parameter whose local gradient was not finite in this step; empty if all were
  // finite, or if gradients are not sharded (GradientBuckets checks those).
  const std::string& NotFinite() const;
  // Gathers used since construction, and how many of them were complete when Use was called.
  std::int64_t Gathers() const;
  std::int64_t GathersReady() const;
  double SecondsWaited() const;  // for transfers of the shard group, since BeginStep

 private:
  comm::Collectives shard_;
  kernels::Registry* registry_ = nullptr;
  std::unique_ptr<UnitGathers> gathers_;    // null: values are not sharded
  std::unique_ptr<UnitScatters> scatters_;  // null: gradients are not sharded
  // A gather that GatherUpdated has started.
  struct UpdateGather {
    Part range;  // range of the piece
    comm::Request request;
  };
  void OrderUpdated(bool first_stage);
  bool gathers_updated_ = false;
  std::vector<std::size_t> updated_;   // indices of pieces, in the order of a forward pass
  std::vector<UpdateGather> updates_;  // in that order; emptied when all are complete
  bool overlap_ = true;
  std::string all_finite_;  // always empty: what NotFinite returns if unsharded
  double seconds_waited_ = 0, waited_before_ = 0;
};

}  // namespace trireme::parallel
