// The batches of a data rank: its share of a step's windows or pairs, as entries with tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/data/pairs.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/model/staged_batches.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

// Entries without contents for this rank's share of a batch, for plans and measurements: they have
// sizes, positions and groups; their inputs, targets and ordinals are empty.
std::vector<data::Entry> BlankEntries(const TrainingState& state, const StepShape& step);

// A step's entries on this rank. The memory is reused from step to step.
struct LoadedBatch {
  std::int64_t step = -1;
  std::vector<data::Entry> entries;  // as many as the largest step so far had; see Entries()
  std::size_t count = 0;             // entries of this step, including empty ones
  bool unread = false;               // the windows could not be read: all entries are empty
  std::optional<model::StagedBatches::Staged> staged;  // copy for a GPU, if loaded in advance
  std::span<const data::Entry> Entries() const { return {entries.data(), count}; }
};

// Loads the batches of steps and tells where each step lies in the data. Batches are of windows
// (BatchLoader) or pairs of texts (PairLoader). All ranks get the same answers about a step.
class StepLoader {
 public:
  virtual ~StepLoader() = default;

  // Loads this rank's share of step `step` (from 0). Collective over the replica for streams.
  virtual void Load(std::int64_t step, LoadedBatch& batch) = 0;
  // Throws the error that kept this rank from reading a batch, if there was one.
  virtual void RequireRead() const = 0;

  virtual std::int64_t Targets(std::int64_t step) const = 0;  // over all ranks, before masks
  // Over all steps before this one: number of targets, number of samples, epochs completed.
  virtual std::int64_t TargetsBefore(std::int64_t step) const = 0;
  virtual std::int64_t NextSample(std::int64_t step) const = 0;
  virtual double Epochs(std::int64_t step) const = 0;
  // True if the step's batch has the usual shapes, so that it may be recorded as a graph.
  virtual bool Whole(std::int64_t step) const = 0;
};

class BatchLoader : public StepLoader {
 public:
  // The files of `tokens` must outlive this.
  BatchLoader(const TrainingState& state, const data::Corpus& tokens);

  const data::Sampler& Samples() const { return sampler_; }
  // Continues elsewhere: step origin.step begins at this origin, and later steps follow.
  void Move(const data::Origin& origin);
  void Load(std::int64_t step, LoadedBatch& batch) override;
  // See data::Windows::RequireRead.
  void RequireRead() const override { windows_.RequireRead(); }
  std::int64_t Targets(std::int64_t step) const override { return sampler_.BatchTargets(step); }
  std::int64_t TargetsBefore(std::int64_t step) const override {
    return sampler_.TargetsBefore(step);
  }
  std::int64_t NextSample(std::int64_t step) const override { return sampler_.NextSample(step); }
  double Epochs(std::int64_t step) const override { return sampler_.Epochs(step); }
  bool Whole(std::int64_t step) const override { return sampler_.BatchSize(step) == share_.batch; }

 private:
  data::Sampler sampler_;
  BatchShare share_;
  data::Windows windows_;  // one turn per step
  Positions positions_;    // positions of each window that this rank holds
  bool document_mask_ = false;
  std::int64_t length_ = 0;  // T of a window
};

// Batches of pairs. All entries of a step are padded to its longest texts, in every layout.
class PairLoader : public StepLoader {
 public:
  // Reads the lengths of all pairs of the training split. `pairs` must outlive this. Not
  // collective; throws InputError if data::PairBatches does.
  PairLoader(const TrainingState& state, const data::PairFile& pairs);

  const data::PairBatches& Order() const { return order_; }
  const data::PairFile& File() const { return pairs_; }
  void Load(std::int64_t step, LoadedBatch& batch) override;
  void RequireRead() const override {}
  std::int64_t Targets(std::int64_t step) const override {
    return order_.Shape(step).target_tokens;
  }
  std::int64_t TargetsBefore(std::int64_t step) const override {
    return order_.TargetsBefore(step);
  }
  // Counts the pairs of completed epochs only.
  std::int64_t NextSample(std::int64_t step) const override {
    return step / order_.StepsPerEpoch() * order_.Pairs();
  }
  double Epochs(std::int64_t step) const override {
    return static_cast<double>(step) / static_cast<double>(order_.StepsPerEpoch());
  }
  bool Whole(std::int64_t) const override { return false; }  // shapes vary from step to step

 private:
  const data::PairFile& pairs_;
  data::PairBatches order_;
  BatchShare share_;
  std::vector<std::int64_t> places_;  // this rank's pairs, as places in the split
};

}  // namespace trireme::train
