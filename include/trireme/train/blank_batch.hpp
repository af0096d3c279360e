// A batch without tokens: the entries that a rank would load, for plans and measurements.
#ifndef TRIREME_TRAIN_BLANK_BATCH_HPP_
#define TRIREME_TRAIN_BLANK_BATCH_HPP_

#include <cstdint>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/train/step_shape.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

// Entries of this rank's share of a batch: sizes, positions and groups; inputs, targets and
// ordinals are empty.
std::vector<data::Entry> BlankEntries(const TrainingState& state, const StepShape& step);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_BLANK_BATCH_HPP_
