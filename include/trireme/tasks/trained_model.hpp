// A trained model in the deck's layout, for the tasks that do not train it: evaluate, generate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/app/job.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::tasks {

class TrainedModel {
 public:
  // Collective. Makes the plan, opens the token file and reads the weights of -r. micro_batch:
  // sequences that a rank takes at once; 0: the deck's. cache_slots: sequences written at once,
  // whose keys and values are cached if the layout supports it. packing: whether to pack the
  // weights. AgreedError (exit code 2) without -r, or if packing is asked for but impossible.
  explicit TrainedModel(const app::Job& job, std::int64_t micro_batch = 0,
                        std::int64_t cache_slots = 0, PackWeights packing = PackWeights::kNo);

  // For encoder-decoders, the target side.
  const data::TokenFile& Tokens() const {
    return pairs_ ? pairs_->Of(data::Side::kTarget) : *tokens_;
  }
  // Null for decoders.
  const data::PairFile* Pairs() const { return pairs_ ? &*pairs_ : nullptr; }
  const std::string& Checkpoint() const { return checkpoint_; }  // folder of the weights
  model::ParallelModel& Net() { return *model_; }

 private:
  std::string checkpoint_;
  const train::EvaluationPlan plan_;
  comm::ProcessGrid grid_;
  // Exactly one of the two is set after construction.
  std::optional<data::TokenFile> tokens_;
  std::optional<data::PairFile> pairs_;
  std::unique_ptr<model::ParallelModel> model_;
};

}  // namespace trireme::tasks
