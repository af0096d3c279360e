// Data parallelism: sums of gradients over the data group in buckets, whose non-blocking
// all-reduces (or reduce-scatters, if moments are sharded) start while the backward pass still
// works on earlier layers (Li et al. 2020, "PyTorch Distributed").
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/parallel/shared_gradients.hpp"

namespace trireme::parallel {

class GradientBuckets {
 public:
  // The pieces of the registry's ownership are the buckets, from the end. `data`: ranks that own
  // the same elements; `shard`: ranks that share out the pieces. Gradients are, by what is sharded:
  //   none        all-reduced over `data`
  //   optimizer   reduce-scattered over `shard`, then the owned ones all-reduced over `data`
  //   gradients   summed over `shard` by ShardedUnits before Wait, then all-reduced over `data`
  // With setup.canonical all sums follow the fixed tree, in Wait, from whole gradients; exchange
  // buffers are allocated here. All referred to must outlive it. `shared` (or null): sums within
  // the replica that come before a reduce-scatter.
  GradientBuckets(const comm::Collectives& data, const comm::Collectives& shard,
                  kernels::Registry& registry, const device::Stream& stream,
                  const ShardSetup& setup, SharedGradients* shared);

  void Begin();  // a new step: nothing is ready
  // Declares the gradients at flat offsets >= begin final on this rank: starts the sums of the
  // buckets that are now whole, and gives running ones a chance to progress. Collective over both
  // groups. On a CPU it waits for the oldest sums where more than 16 MiB are under way. For
  // gradients that need a second sum (over `data`), it waits for the scatter of the bucket started
  // two earlier.
  void Ready(std::int64_t begin);
  void Progress();  // gives running sums a chance to progress
  // Returns when every bucket is summed. RunError if one was never ready. If gradients are sharded,
  // ShardedUnits::FinishGradients comes first.
  void Wait();
  // Bytes of exchange buffers; 0 unless canonical.
  std::int64_t Bytes() const { return data_tree_.Bytes() + shard_tree_.Bytes(); }
  // Most bytes that MPI takes for sums under way on the rank of the group that takes most, as Open
  // MPI 4 does; on a GPU none.
  std::int64_t LibraryBytes() const;

  // Name of the first parameter whose local gradient was not finite in this step; empty if all
  // were (or gradients are sharded, which ShardedUnits checks).
  const std::string& NotFinite() const { return not_finite_; }
  double SecondsWaited() const { return seconds_waited_; }  // in this step: exposed
  std::size_t Count() const { return buckets_.size(); }
  // Seconds() when this step's first sum started; 0 if none did.
  double FirstStart() const;
  // Seconds() when the last call of Ready began: the end of the backward pass; 0 before the first.
  double LastReady() const { return last_ready_; }
  // Sums of this step that had started by then: in flight during the backward pass.
  std::int64_t StartedBeforeEnd() const;

 private:
  struct Bucket {
    int piece = 0;          // number in the registry's ownership
    kernels::Piece cut;     // the piece itself
    comm::Request request;  // of the bucket's sum or scatter
    comm::Request across;   // of the owned part, over `data`, after the scatter
    double started = 0;     // Seconds() of this step's first transfer; 0: none yet
  };
  void Start(Bucket& bucket);
  void MakeRoom();  // for the next bucket's sum
  std::int64_t BytesOf(const Bucket& bucket) const;
  void StartAcross(Bucket& bucket, double since);  // when its scatter is complete
  void Await(comm::Request& request, double since);
  void CheckFinite(const Bucket& bucket);
  void SumInTree(const Bucket& bucket);
  void* Gradient(std::int64_t place) const;

  comm::Collectives data_, shard_;
  kernels::Registry* registry_;
  device::Stream stream_;
  SharedGradients* shared_;
  comm::Sharding sharding_;
  bool overlap_, canonical_;
  TreeCollectives data_tree_, shard_tree_;
  std::vector<Bucket> buckets_;  // in the order in which they become ready
  std::size_t next_ = 0;         // first bucket not started
  std::size_t across_ = 0;       // first bucket whose second sum has not started
  std::size_t awaited_ = 0;      // first bucket that MakeRoom has not awaited
  std::int64_t under_way_ = 0;   // bytes of the first sums from there on
  std::string not_finite_;
  double seconds_waited_ = 0;
  double last_ready_ = 0;
};

// Name of the first parameter in the flat range with a gradient that is not finite; empty: none.
// gradients: of the range, from its first element on, in the stream's memory.
std::string FirstNotFinite(const device::Stream& stream, const kernels::Registry& registry,
                           Part flat, void* gradients);

// Operands' lengths of memory that Open MPI 4's non-blocking reduce-scatter touches on the rank
// that takes most: sums climb a binomial tree to rank 0, and what a rank receives comes into one of
// two halves in turn.
inline int ScatterCopies(int ranks) { return std::min(ranks - 1, 2); }

}  // namespace trireme::parallel
