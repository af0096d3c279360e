// Agreements of ranks while texts are written token by token.
#ifndef TRIREME_TASKS_TURNS_HPP_
#define TRIREME_TASKS_TURNS_HPP_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/model/key_value_cache.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::tasks {

enum class Verdict { kGoOn, kDone, kStopped };

// Collective over the world: whether there is another turn. passes: of this rank in it, afterwards
// the most of any rank. kStopped: a rank wishes to stop. AgreedError (exit code 1) if predictions
// of a rank were not finite.
Verdict AgreeOnTurn(const comm::Communicator& world, bool stop, bool finite, std::int64_t& passes);

// Passes of a turn.
struct TurnPasses {
  std::vector<data::Entry> entries;
  std::vector<model::CachedPlaces> places;  // [entries]
};
// Chooses for `rows` rows of logits, the first of which is the turn's row `first`.
using ChooseRows =
    FunctionRef<void(const std::vector<double>& logits, std::size_t first, std::size_t rows)>;
// Collective over a replica; with sharded values over the model's grid. Runs the passes, at most as
// many at once as the model takes, and calls choose on the rank that chooses for the replica, in
// the order of the rows. passes: the most of any rank; ranks with fewer add empty ones if the
// others wait for them.
void RunPasses(model::ParallelModel& model, std::int64_t passes, TurnPasses& turn,
               ChooseRows choose);

// Collective over a replica, whose processors may round differently: replaces choices by those of
// the first tensor rank of the last stage. choices: fp64 numbers.
void ShareChoices(const comm::ProcessGrid& grid, void* choices, std::int64_t numbers);

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_TURNS_HPP_
