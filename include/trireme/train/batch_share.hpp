// Shares of a step's batch: which windows a data rank takes, and how they make micro-batches. Pure.
#pragma once

#include <cstdint>

#include "trireme/base/partition.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::train {

// Sizes of a step's batch, for plans and measurements.
struct StepShape {
  std::int64_t sequences = 0;  // windows, or pairs, over all ranks
  // Padded lengths of pairs; 0: texts as long as the limit on a step's tokens allows.
  std::int64_t source_length = 0, target_length = 0;
};

// Most windows of a batch that a data rank takes.
std::int64_t LargestShare(std::int64_t batch, int data_ranks, const parallel::Canonical& canonical);
// Micro-batches of that share, of up to `micro_batch` windows each.
std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch,
                          const parallel::Canonical& canonical = {});

// run.canonical: leaves of one group in a batch of `batch` windows.
std::int64_t LeavesOfGroup(std::int64_t batch, const parallel::Canonical& canonical);

// How one data rank takes its part of every batch.
struct BatchShare {
  int rank = 0, ranks = 1;       // place in the data axis, and its size
  std::int64_t batch = 1;        // most windows of a step
  std::int64_t micro_batch = 1;  // B, most sequences of an entry
  int leaves = 1;                // entries of a micro-batch
  // True: all ranks run the same number of micro-batches, because they exchange shards.
  bool alike = false;
  parallel::Canonical canonical;
  parallel::PipelineShape pipeline;

  // Places in a batch of `windows` windows; those after its end do not exist.
  Part Places(std::int64_t windows) const;
  // Windows of that batch that this rank takes.
  std::int64_t Count(std::int64_t windows) const;
  // Entries of a step with a batch of `windows`, the empty ones included.
  std::int64_t Entries(std::int64_t windows) const;
  // Positions of entry `entry`, relative to Places().begin; empty where nothing is left.
  Part Entry(std::int64_t windows, std::int64_t entry) const;
  // Group of leaves that an entry belongs to, counted on this rank; run.canonical.
  std::int64_t GroupOf(std::int64_t entry) const;
};

}  // namespace trireme::train
