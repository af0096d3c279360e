// Shares of a step's batch: which windows a data rank takes, and how they make micro-batches. Pure.
#ifndef TRIREME_TRAINING_BATCH_SHARE_HPP_
#define TRIREME_TRAINING_BATCH_SHARE_HPP_

#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/pipeline_schedule.hpp"

namespace trireme::training {

// Windows of the data rank with the largest share of a batch, and its micro-batches.
std::int64_t LargestShare(std::int64_t batch, int data_ranks, const parallel::Canonical& canonical);
std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch,
                          const parallel::Canonical& canonical = {});

// run.canonical: leaves of one of its groups in a batch of this size, and the positions in the
// batch that a data rank takes (some may lie after its end).
std::int64_t LeavesOfGroup(std::int64_t batch, const parallel::Canonical& canonical);
Part CanonicalShare(std::int64_t batch, int rank, int data_ranks,
                    const parallel::Canonical& canonical);

// How one data rank takes its part of every batch.
struct BatchShare {
  int rank = 0, ranks = 1;       // place in the data axis, and its size
  std::int64_t batch = 1;        // most windows of a step
  std::int64_t micro_batch = 1;  // B, most sequences of an entry
  int leaves = 1;                // entries of a micro-batch
  bool alike = false;            // all ranks run as many micro-batches: shards are exchanged
  parallel::Canonical canonical;
  parallel::PipelineShape pipeline;

  // Positions in a batch of `windows`, of which those after its end do not exist.
  Part Positions(std::int64_t windows) const;
  // Windows of that batch that this rank takes.
  std::int64_t Count(std::int64_t windows) const;
  // Entries of a step with a batch of `windows`, the empty ones included.
  std::int64_t Entries(std::int64_t windows) const;
  // Positions of entry `entry`, relative to Positions().begin; empty where nothing is left.
  Part Entry(std::int64_t windows, std::int64_t entry) const;
  // Group of leaves that an entry belongs to, counted on this rank; run.canonical.
  std::int64_t GroupOf(std::int64_t entry) const;
};

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_BATCH_SHARE_HPP_
