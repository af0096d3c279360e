// The [optimizer] and [schedule] sections.
#ifndef TRIREME_TRAIN_OPTIMIZER_OPTIONS_HPP_
#define TRIREME_TRAIN_OPTIMIZER_OPTIONS_HPP_

#include <cstdint>

#include "trireme/deck/deck.hpp"

namespace trireme::train {

enum class OptimizerKind { kAdamW, kSgd };
enum class Decay { kConstant, kCosine, kLinear, kWsd };  // of the learning rate after the warm-up

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;  // peak of the schedule
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;  // on matrices; none on norms and biases
  double clip_norm = 1;       // 0: never
  double label_smoothing = 0;
};

struct ScheduleOptions {
  double epochs = 1;         // passes over the training windows; of no effect if steps > 0
  std::int64_t steps = 0;    // of the whole run; 0: by epochs
  std::int64_t stop_at = 0;  // step that ends this invocation; 0: the last one
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::kCosine;
  double decay_fraction = 0.2;  // wsd: share of all steps in the final, linear decay
  double final_fraction = 0.1;  // of the peak, at the last step
  double walltime_minutes = 0;  // 0: no limit
};

void DeclareOptimizerAndSchedule(deck::Schema& schema);  // [optimizer], [schedule]

OptimizerOptions ReadOptimizer(const deck::Deck& deck);
ScheduleOptions ReadSchedule(const deck::Deck& deck);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_OPTIMIZER_OPTIONS_HPP_
