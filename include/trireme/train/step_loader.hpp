// Batches of steps, and the place of each step in the data: of windows (BatchLoader) or of pairs of
// texts (PairLoader).
#ifndef TRIREME_TRAIN_STEP_LOADER_HPP_
#define TRIREME_TRAIN_STEP_LOADER_HPP_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/model/staged_batches.hpp"

namespace trireme::train {

// A step's entries on this rank. Its memory is reused from step to step.
struct LoadedBatch {
  std::int64_t step = -1;
  std::vector<data::Sample> windows;  // of this data rank
  std::vector<data::Entry> entries;   // as many as the largest step so far had
  std::size_t count = 0;              // entries of this step, the empty ones included
  bool unread = false;                // the windows could not be read: all entries are empty
  std::optional<model::StagedBatches::Staged> staged;  // if loaded ahead, for a GPU
  std::span<const data::Entry> Entries() const { return {entries.data(), count}; }
};

// Functions of a step are the same on all ranks.
class StepLoader {
 public:
  virtual ~StepLoader() = default;

  // Fills `batch` with this rank's part of step number `step` (from 0). Collective over the
  // replica, if windows are streamed.
  virtual void Load(std::int64_t step, LoadedBatch& batch) = 0;
  // Throws what kept this rank from reading a batch.
  virtual void RequireRead() const = 0;

  virtual std::int64_t StepsPerEpoch() const = 0;
  virtual std::int64_t Targets(std::int64_t step) const = 0;  // that count, without masks
  // Of all steps before this one: targets, samples, and epochs completed.
  virtual std::int64_t TargetsBefore(std::int64_t step) const = 0;
  virtual std::int64_t NextSample(std::int64_t step) const = 0;
  virtual double Epochs(std::int64_t step) const = 0;
  // True if the step's batch has the shapes of most others, so that it may be recorded.
  virtual bool Whole(std::int64_t step) const = 0;
};

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_STEP_LOADER_HPP_
