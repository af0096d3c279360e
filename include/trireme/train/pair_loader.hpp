// Batches of pairs of texts of a data rank: its share of a step's pairs, cut into entries.
#ifndef TRIREME_TRAIN_PAIR_LOADER_HPP_
#define TRIREME_TRAIN_PAIR_LOADER_HPP_

#include <cstdint>
#include <vector>

#include "trireme/data/pair_batches.hpp"
#include "trireme/train/step_loader.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

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

#endif  // TRIREME_TRAIN_PAIR_LOADER_HPP_
