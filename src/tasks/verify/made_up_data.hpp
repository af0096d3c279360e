// Data that a verification trains on and evaluates: made-up tokens, or pairs of texts.
#ifndef TRIREME_SRC_TASKS_VERIFY_MADE_UP_DATA_HPP_
#define TRIREME_SRC_TASKS_VERIFY_MADE_UP_DATA_HPP_

#include <cstdint>
#include <optional>

#include "trireme/data/pair_file.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/tasks/verify.hpp"

namespace trireme::tasks {

// Two steps an epoch, the second short. Pairs if the set-up has them, of texts of all lengths.
class MadeUpData {
 public:
  MadeUpData(const comm::Communicator& world, const train::TrainingOptions& small);

  // Tokens or pairs of the training split.
  static std::int64_t TrainSize(const train::TrainingOptions& small);
  train::TrainingStep MakeStep(train::TrainingState& state) const;
  // Collective over the model's grid. Nats per token of the valid split.
  double ValidationLoss(model::ParallelModel& model) const;

 private:
  std::optional<data::TokenFile> tokens_;
  std::optional<data::PairFile> pairs_;
};

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_VERIFY_MADE_UP_DATA_HPP_
