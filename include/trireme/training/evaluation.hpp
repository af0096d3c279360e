// Validation and test loss: every target of a split once, on any number of ranks.
#ifndef TRIREME_TRAINING_EVALUATION_HPP_
#define TRIREME_TRAINING_EVALUATION_HPP_

#include <cstdint>

#include "trireme/data/token_file.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::training {

struct Evaluation {
  double loss = 0;  // nats per token, mean over every target of the split
  std::int64_t targets = 0;
  double seconds = 0;
};
// Collective over the model's grid. Windows of the split follow each other without overlap and are
// spread over the data ranks; every target counts once, whatever the layout.
Evaluation Evaluate(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split);

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_EVALUATION_HPP_
