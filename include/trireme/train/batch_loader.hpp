// Batches of a data rank: its share of a step's windows, cut into entries and filled with tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/model/staged_batches.hpp"
#include "trireme/train/batch_share.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

// Entries of this rank's share of a batch, for plans and measurements: sizes, positions and groups;
// inputs, targets and ordinals are empty.
std::vector<data::Entry> BlankEntries(const TrainingState& state, const StepShape& step);

// A step's entries on this rank. Its memory is reused from step to step.
struct LoadedBatch {
  std::int64_t step = -1;
  std::vector<data::Entry> entries;  // as many as the largest step so far had
  std::size_t count = 0;             // entries of this step, the empty ones included
  bool unread = false;               // the windows could not be read: all entries are empty
  std::optional<model::StagedBatches::Staged> staged;  // if loaded ahead, for a GPU
  std::span<const data::Entry> Entries() const { return {entries.data(), count}; }
};

// Batches of steps, and the place of each step in the data: of windows (BatchLoader) or of pairs of
// texts (PairLoader). Functions of a step are the same on all ranks.
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
  // Sums over all steps before this one: targets, samples, and epochs completed.
  virtual std::int64_t TargetsBefore(std::int64_t step) const = 0;
  virtual std::int64_t NextSample(std::int64_t step) const = 0;
  virtual double Epochs(std::int64_t step) const = 0;
  // True if the step's batch has the shapes of most others, so that it may be recorded.
  virtual bool Whole(std::int64_t step) const = 0;
};

class BatchLoader : public StepLoader {
 public:
  // The files of `tokens` must outlive it.
  BatchLoader(const TrainingState& state, const data::Corpus& tokens);

  const data::Sampler& Samples() const { return sampler_; }
  // Steps from origin.step on are counted from there.
  void Move(const data::Origin& origin);
  void Load(std::int64_t step, LoadedBatch& batch) override;
  // As data::Windows::RequireRead.
  void RequireRead() const override { windows_.RequireRead(); }
  std::int64_t Targets(std::int64_t step) const override { return sampler_.BatchTargets(step); }
  std::int64_t StepsPerEpoch() const override { return sampler_.StepsPerEpoch(); }
  std::int64_t TargetsBefore(std::int64_t step) const override {
    return sampler_.TargetsBefore(step);
  }
  std::int64_t NextSample(std::int64_t step) const override { return sampler_.NextSample(step); }
  double Epochs(std::int64_t step) const override { return sampler_.Epochs(step); }
  bool Whole(std::int64_t step) const override { return sampler_.BatchSize(step) == share_.batch; }

 private:
  data::Sampler sampler_;
  BatchShare share_;
  data::Windows windows_;  // a turn is a step
  Positions positions_;    // of each window, held by this rank
  bool document_mask_ = false;
  std::int64_t length_ = 0;  // T of a window
};

// All entries of a step are padded to its longest texts, whatever the layout.
class PairLoader : public StepLoader {
 public:
  // Reads the lengths of all pairs of the training split. `pairs` must outlive it. Serial; throws
  // InputError as data::PairBatches.
  PairLoader(const TrainingState& state, const data::PairFile& pairs);

  const data::PairBatches& Order() const { return order_; }
  const data::PairFile& File() const { return pairs_; }
  void Load(std::int64_t step, LoadedBatch& batch) override;
  void RequireRead() const override {}
  std::int64_t Targets(std::int64_t step) const override {
    return order_.Shape(step).target_tokens;
  }
  std::int64_t StepsPerEpoch() const override { return order_.StepsPerEpoch(); }
  std::int64_t TargetsBefore(std::int64_t step) const override {
    return order_.TargetsBefore(step);
  }
  // Pairs of whole epochs: those of a part are not counted.
  std::int64_t NextSample(std::int64_t step) const override {
    return step / StepsPerEpoch() * order_.Pairs();
  }
  double Epochs(std::int64_t step) const override {
    return static_cast<double>(step) / static_cast<double>(StepsPerEpoch());
  }
  bool Whole(std::int64_t /*step*/) const override { return false; }  // shapes differ

 private:
  const data::PairFile& pairs_;
  data::PairBatches order_;
  BatchShare share_;
  std::vector<std::int64_t> places_;  // of this rank's pairs
};

}  // namespace trireme::train
