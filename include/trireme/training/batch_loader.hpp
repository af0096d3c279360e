// Batches of a data rank: its share of a step's windows, cut into entries and filled with tokens.
#ifndef TRIREME_TRAINING_BATCH_LOADER_HPP_
#define TRIREME_TRAINING_BATCH_LOADER_HPP_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/data/corpus.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/training/training_state.hpp"

namespace trireme::training {

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

class BatchLoader {
 public:
  // The files of `tokens` must outlive it.
  BatchLoader(const TrainingState& state, const data::Corpus& tokens);

  const data::Sampler& Samples() const { return sampler_; }
  // Steps from origin.step on are counted from there.
  void Move(const data::Origin& origin);
  // Fills `batch` with the windows of step number `step` (from 0). Collective over the replica, if
  // they are streamed.
  void Load(std::int64_t step, LoadedBatch& batch);
  // As data::Windows::RequireRead.
  void RequireRead() const { windows_.RequireRead(); }
  // True if the step has a full batch; the same on all ranks.
  bool Whole(std::int64_t step) const { return sampler_.BatchSize(step) == share_.batch; }

 private:
  data::Sampler::Options samples_;
  data::Sampler sampler_;
  BatchShare share_;
  data::Windows windows_;  // a turn is a step
  Positions positions_;    // of each window, held by this rank
  bool document_mask_ = false;
  std::int64_t length_ = 0;  // T of a window
};

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_BATCH_LOADER_HPP_
