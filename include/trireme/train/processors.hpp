// Whether ranks whose copies must stay equal compute with the same arithmetic.
#ifndef TRIREME_TRAIN_PROCESSORS_HPP_
#define TRIREME_TRAIN_PROCESSORS_HPP_

#include <cstdint>
#include <functional>
#include <string>

#include "trireme/comm/process_grid.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

// Hash of what this rank's processor makes of a few steps of the optimizer on fixed numbers, drawn
// as initial weights are: equal hashes mean that copies of weights stay equal where their gradients
// are. Serial; takes milliseconds.
std::uint64_t UpdateBits(const TrainingState& state);

// Collective over the grid's world. kind: of this rank's processor, "AVX2", or of its card. If all
// kinds are equal, or none of different kinds hold copies of the same elements, empty. If only data
// ranks differ and `bits` (UpdateBits; called if needed) are the same, a warning that names hosts
// and kinds. Throws AgreedError (exit code 2) if copies would drift apart: bits differ, or tensor
// ranks differ, each of which computes the gradients of its copies of norms.
std::string CheckProcessors(const comm::ProcessGrid& grid, const std::string& kind,
                            const std::function<std::uint64_t()>& bits, const comm::Hosts& hosts);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_PROCESSORS_HPP_
