// Agreements of ranks while texts are written token by token.
#ifndef TRIREME_EVALUATE_TURNS_HPP_
#define TRIREME_EVALUATE_TURNS_HPP_

#include <cstdint>

#include "trireme/comm/process_grid.hpp"

namespace trireme::evaluate {

enum class Verdict { kGoOn, kDone, kStopped };

// Collective over the world: whether there is another turn. passes: of this rank in it, afterwards
// the most of any rank. kStopped: a rank wishes to stop. AgreedError (exit code 1) if predictions
// of a rank were not finite.
Verdict AgreeOnTurn(const comm::Communicator& world, bool stop, bool finite, std::int64_t& passes);

// Collective over a replica, whose processors may round differently: replaces choices by those of
// the first tensor rank of the last stage. choices: fp64 numbers.
void ShareChoices(const comm::ProcessGrid& grid, void* choices, std::int64_t numbers);

}  // namespace trireme::evaluate

#endif  // TRIREME_EVALUATE_TURNS_HPP_
