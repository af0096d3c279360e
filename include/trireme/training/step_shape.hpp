// Sizes of a step's batch, for plans and measurements.
#ifndef TRIREME_TRAINING_STEP_SHAPE_HPP_
#define TRIREME_TRAINING_STEP_SHAPE_HPP_

#include <cstdint>

namespace trireme::training {

struct StepShape {
  std::int64_t sequences = 0;  // windows, or pairs, over all ranks
  // Of pairs: padded lengths. 0: texts as long as the limit on a step's tokens allows.
  std::int64_t source_length = 0, target_length = 0;
};

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_STEP_SHAPE_HPP_
