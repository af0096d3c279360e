// Options of the deck's [optimizer].
#ifndef TRIREME_OPTIMIZER_OPTIONS_HPP_
#define TRIREME_OPTIMIZER_OPTIONS_HPP_

#include "trireme/input/deck.hpp"

namespace trireme::optimizer {

enum class Kind { kAdamW, kSgd };

struct Options {
  Kind kind = Kind::kAdamW;
  double learning_rate = 1e-3;  // peak of the schedule
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;  // on matrices; none on norms and biases
  double clip_norm = 1;       // 0: never
  double label_smoothing = 0;
};

// Declares the keys of [optimizer], label_smoothing included; reads them.
void DeclareOptimizer(input::Schema& schema);
Options ReadOptimizer(const input::Deck& deck);

}  // namespace trireme::optimizer

#endif  // TRIREME_OPTIMIZER_OPTIONS_HPP_
