// Batches of a data rank: its share of a step's windows, cut into entries and filled with tokens.
#ifndef TRIREME_TRAIN_BATCH_LOADER_HPP_
#define TRIREME_TRAIN_BATCH_LOADER_HPP_

#include <cstdint>
#include <vector>

#include "trireme/data/corpus.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/train/step_loader.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

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
  data::Sampler::Options samples_;
  data::Sampler sampler_;
  BatchShare share_;
  data::Windows windows_;  // a turn is a step
  Positions positions_;    // of each window, held by this rank
  bool document_mask_ = false;
  std::int64_t length_ = 0;  // T of a window
};

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_BATCH_LOADER_HPP_
