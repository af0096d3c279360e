// A trained model in the deck's layout, for the tasks that do not train: evaluate, generate.
#ifndef TRIREME_DRIVER_TRAINED_MODEL_HPP_
#define TRIREME_DRIVER_TRAINED_MODEL_HPP_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/driver/options.hpp"
#include "trireme/job/job.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::driver {

class TrainedModel {
 public:
  // Collective. Plans, opens the token file and reads the weights of -r. micro_batch: sequences
  // that a rank takes at once; 0: as the deck says. cache_slots: sequences that are written at
  // once, for which keys and values are kept where that is built. packing: of the weights.
  // AgreedError (exit code 2) without -r, and if packing is asked for where there is none.
  explicit TrainedModel(const job::Job& job, std::int64_t micro_batch = 0,
                        std::int64_t cache_slots = 0, PackWeights packing = PackWeights::kNo);

  const data::TokenFile& Tokens() const { return *tokens_; }
  const std::string& Checkpoint() const { return checkpoint_; }  // folder of the weights
  model::ParallelModel& Net() { return *model_; }

 private:
  std::string checkpoint_;
  const plan::EvaluationPlan plan_;
  comm::ProcessGrid grid_;
  std::optional<data::TokenFile> tokens_;  // always there after construction
  std::unique_ptr<model::ParallelModel> model_;
};

}  // namespace trireme::driver

#endif  // TRIREME_DRIVER_TRAINED_MODEL_HPP_
