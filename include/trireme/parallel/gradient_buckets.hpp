// Data parallelism: sums gradients over the data group in buckets. The non-blocking all-reduce of a
// bucket (or reduce-scatter, if moments are sharded) starts while the backward pass still works on
// earlier layers (Li et al. 2020, "PyTorch Distributed").
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
  // The buckets are the pieces of the registry's ownership, last piece first. `data`: ranks that
  // own the same elements; `shard`: ranks among which the pieces are sharded. What happens to the
  // gradients depends on setup.sharding:
  //   none        all-reduced over `data`
  //   optimizer   reduce-scattered over `shard`, then the owned ones all-reduced over `data`
  //   gradients   summed over `shard` by ShardedUnits before Wait, then all-reduced over `data`
  // With setup.canonical, Wait makes all sums in the fixed tree; its exchange buffers are allocated
  // here. `shared`: sums within the replica before a reduce-scatter; null: none. All arguments but
  // `setup` must outlive this.
  GradientBuckets(const comm::Collectives& data, const comm::Collectives& shard,
                  kernels::Registry& registry, const device::Stream& stream,
                  const ShardSetup& setup, SharedGradients* shared);

  void Begin();  // starts a new step: no bucket is ready
  // Declares that the gradients at flat offsets >= begin are final on this rank. Starts the sums of
  // the buckets that are now complete, and lets running sums progress. Collective over both groups.
  // On a CPU, waits for the oldest sums while more than 16 MiB are under way. If gradients need a
  // second sum (over `data`), also waits for the scatter of the bucket started two before.
  void Ready(std::int64_t begin);
  void Progress();  // lets running sums progress (MPI_Test)
  // Waits until every bucket is summed. RunError if one was never ready. If gradients are sharded,
  // call ShardedUnits::FinishGradients first.
  void Wait();
  // Bytes of exchange buffers for canonical sums; else 0.
  std::int64_t Bytes() const { return data_tree_.Bytes() + shard_tree_.Bytes(); }
  // Most bytes that Open MPI 4 allocates for sums under way, on the rank with most; on a GPU 0.
  std::int64_t LibraryBytes() const;

  // Name of the first parameter whose local gradient was not finite in this step; empty if all
  // were finite, or if gradients are sharded (ShardedUnits checks those).
  const std::string& NotFinite() const { return not_finite_; }
  double SecondsWaited() const { return seconds_waited_; }  // in this step: not hidden
  std::size_t Count() const { return buckets_.size(); }
  // Seconds() when this step's first sum started; 0 if none has started.
  double FirstStart() const;
  // Seconds() at the last call of Ready, the end of the backward pass; 0 before the first call.
  double LastReady() const { return last_ready_; }
  // Number of this step's sums that started before LastReady(), during the backward pass.
  std::int64_t StartedBeforeEnd() const;

 private:
  struct Bucket {
    int piece = 0;          // index in the registry's ownership
    kernels::Piece cut;     // the piece itself
    comm::Request request;  // the all-reduce or reduce-scatter of the bucket
    comm::Request across;   // after a scatter, the owned part's sum over `data`
    double started = 0;     // Seconds() of this step's first transfer; 0: none yet
  };
  void Start(Bucket& bucket);
  void MakeRoom();  // waits for old sums before the next one starts
  std::int64_t BytesOf(const Bucket& bucket) const;
  void StartAcross(Bucket& bucket, double since);  // waits for the scatter first
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
  std::size_t awaited_ = 0;      // first bucket for which MakeRoom has not waited
  std::int64_t under_way_ = 0;   // bytes of the buckets [awaited_, next_)
  std::string not_finite_;
  double seconds_waited_ = 0;
  double last_ready_ = 0;
};

// Name of the first parameter in the range `flat` whose gradient is not finite; empty: none (always
// on a GPU). gradients: those of the range, beginning with its first, in the stream's memory.
std::string FirstNotFinite(const device::Stream& stream, const kernels::Registry& registry,
                           Part flat, void* gradients);

// Memory that Open MPI 4's non-blocking reduce-scatter uses, in lengths of the operand, on the rank
// that uses most: it sums along a binomial tree to rank 0, receiving into two buffers in turn.
inline int ScatterCopies(int ranks) { return std::min(ranks - 1, 2); }

}  // namespace trireme::parallel
