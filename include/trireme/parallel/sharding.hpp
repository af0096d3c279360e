// Sharding over the ranks that hold the same part of the model (ZeRO, Rajbhandari et al. 2020;
// fully sharded data parallelism, Zhao et al. 2023): ownership of elements, parameters gathered
// before they are used, gradients scattered to their owners.
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

// Elements. Parts of a length that is cut evenly begin on a cache line, as parameters do.
inline constexpr std::int64_t kCut = 32;

// The part of `length` elements, cut evenly, that rank `rank` of `ranks` owns; relative to their
// first.
inline Part OwnPart(std::int64_t length, int rank, int ranks) {
  return comm::PartOfGrains(length, kCut, rank, ranks);
}

// Elements that each rank owns, of a length cut evenly, and of a piece.
inline comm::Counts OwnCounts(std::int64_t length) { return comm::Counts::Cut(length, kCut); }
inline comm::Counts OwnCounts(const kernels::Piece& piece) {
  if (piece.counts.empty()) return OwnCounts(piece.range.Size());
  return {piece.counts};
}

struct ShardSetup {
  comm::Sharding sharding = comm::Sharding::kNone;
  int rank = 0, ranks = 1;  // place in the shard group, and its size
  int tensor_ranks = 1;     // ranks that must cut the same pieces in spite of uneven slices
  std::int64_t bucket_bytes = 4 << 20;
  bool whole_parameters = false;  // pieces are cut between parameters only
  int prefetch = 1;               // units gathered ahead of their use
  bool overlap = true;            // false: every transfer is awaited where it starts
  bool canonical = false;         // gradients stay whole until the step's end
  int gradient_levels = 1;
  bool training = true;     // false: there are no gradients
  bool first_stage = true;  // else the token table, if it is held, is the head's
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
kernels::Ownership PlanOwnership(const kernels::ParameterList& list, Dtype dtype,
                                 const ShardSetup& setup);

// Throws InputError if a piece of sharded state passes what one transfer can carry: its count is an
// int. The ownership is PlanOwnership's with any sharding but none.
void CheckTransfers(const kernels::ParameterList& list, const kernels::Ownership& owns);

class UnitGathers;
class UnitScatters;

// Transfers of a rank's units if values, gradients or moments are sharded; otherwise every call
// returns at once.
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
  ShardedUnits(const comm::Collectives& shard, kernels::Registry& registry,
               const device::Stream& stream, const ShardSetup& setup, SharedGradients* shared);

  // Bytes of buffers for gathered values, and for whole gradients on their way to their owners.
  // Blocks share prefetch + 1 buffers of the largest block's size for values (at most one more than
  // there are blocks), and two for gradients; every other unit has one buffer of each kind.
  std::int64_t GatherBytes() const;
  std::int64_t GradientBytes() const;
  // Most bytes that MPI takes for sums of gradients under way on the rank of the group that takes
  // most, as Open MPI 4 does; on a GPU none.
  std::int64_t LibraryBytes() const;

  // The calls below are collective over the shard group, up to GatherUpdated.
  // Announces the uses of all tasks up to the next call, in order, and starts the first gathers.
  // Each use is one gather; units that other ranks hold do not count. RunError if an earlier use is
  // not over.
  void BeginTasks(const std::vector<int>& uses);
  // Makes the unit's values whole until Done; a unit may be used again before that. If values are
  // sharded, RunError if it is not the next announced use, or if no buffer is free for a block.
  void Use(int unit);
  void Done(int unit);
  // Opens the unit's gradients for additions; EndGradient closes them and starts their
  // reduce-scatter. A second Begin before the End has no effect. At most two blocks may be open.
  void BeginGradient(int unit);
  void EndGradient(int unit);
  void Progress();   // gives running transfers a chance to progress
  void BeginStep();  // owned gradients become zero where they are sharded
  // Returns when this step's owned gradients are summed over the shard group.
  void FinishGradients();
  // Starts to gather values that are stored whole but were updated by their owners alone. Use waits
  // for those of its unit, FinishUpdated for the rest: before that, nobody else may read or change
  // values.
  void GatherUpdated();
  void FinishUpdated();          // not collective
  void LeaveUpdated() noexcept;  // the same before values go; gives up a rank that is lost

  bool ValuesSharded() const { return gathers_ != nullptr; }
  bool GradientsSharded() const { return scatters_ != nullptr; }
  // Name of the first parameter whose local gradient was not finite in this step; empty if all were
  // (or gradients are not sharded, and GradientBuckets checks them).
  const std::string& NotFinite() const;
  // Gathers used since construction, and the number complete when Use was called.
  std::int64_t Gathers() const;
  std::int64_t GathersReady() const;
  double SecondsWaited() const;  // for transfers over the shard group, in all calls since BeginStep

 private:
  comm::Collectives shard_;
  kernels::Registry* registry_ = nullptr;
  std::unique_ptr<UnitGathers> gathers_;    // null: values are not sharded
  std::unique_ptr<UnitScatters> scatters_;  // null: gradients are not sharded
  // Values that GatherUpdated has started to gather.
  struct UpdateGather {
    Part range;  // of the piece
    comm::Request request;
  };
  void OrderUpdated(bool first_stage);
  bool gathers_updated_ = false;
  std::vector<std::size_t> updated_;   // pieces, in the order in which a forward pass uses them
  std::vector<UpdateGather> updates_;  // in this order, until all are complete
  bool overlap_ = true;
  std::string all_finite_;  // empty
  double seconds_waited_ = 0, waited_before_ = 0;
};

}  // namespace trireme::parallel
