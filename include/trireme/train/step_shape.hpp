// Sizes of a step's batch, for plans and measurements.
#ifndef TRIREME_TRAIN_STEP_SHAPE_HPP_
#define TRIREME_TRAIN_STEP_SHAPE_HPP_

#include <cstdint>

namespace trireme::train {

struct StepShape {
  std::int64_t sequences = 0;  // windows, or pairs, over all ranks
  // Of pairs: padded lengths. 0: texts as long as the limit on a step's tokens allows.
  std::int64_t source_length = 0, target_length = 0;
};

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_STEP_SHAPE_HPP_
