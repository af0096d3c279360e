// Validation and test loss: every target of a split once, on any number of ranks.
#ifndef TRIREME_TRAINING_EVALUATION_HPP_
#define TRIREME_TRAINING_EVALUATION_HPP_

#include <cstdint>
#include <functional>

#include "trireme/data/token_file.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::training {

struct Evaluation {
  double loss = 0;  // nats per token, mean over every target of the split that counts
  std::int64_t targets = 0;
  double seconds = 0;
  bool stopped = false;  // before the end: `loss` is not a number, `targets` 0
};
// Collective over the model's grid. Windows of the split follow each other without overlap and are
// spread over the data ranks; every target counts once, whatever the layout, but those that a mask
// leaves out: of the loss, and of documents as the model's plan says. Throws AgreedError (exit code
// 2) if none is left, and for document masks without the split's documents; exit code 1 if a rank
// cannot read the windows of a stream.
// stop: whether this rank wishes to stop, asked before every round of micro-batches; all ranks pass
// one or none does. They agree, and all stop if one wishes it.
Evaluation Evaluate(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split,
                    const std::function<bool()>& stop = {});

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_EVALUATION_HPP_
