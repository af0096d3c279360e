// Agreement on turns, their passes, and one rank's choices for all of a replica.
#include "trireme/tasks/turns.hpp"

#include <algorithm>
#include <span>

#include "trireme/base/error.hpp"

namespace trireme::tasks {

Verdict AgreeOnTurn(const comm::Communicator& world, bool stop, bool finite, std::int64_t& passes) {
  // Ascending: the largest of all ranks counts.
  enum Wish : std::int64_t { kNone = 0, kStop = 1, kNotFinite = 2 };
  constexpr std::int64_t kUnit = std::int64_t{1} << 40;
  const std::int64_t wish = !finite ? kNotFinite : stop ? kStop : kNone;
  const std::int64_t all = world.Max(wish * kUnit + passes);
  passes = all % kUnit;
  if (all / kUnit == kNotFinite) {
    throw AgreedError(ExitCode::kFailed, "the model's prediction is not finite",
                      "Its weights are damaged.");
  }
  if (all / kUnit == kStop) return Verdict::kStopped;
  return passes > 0 ? Verdict::kGoOn : Verdict::kDone;
}

void RunPasses(model::ParallelModel& model, std::int64_t passes, TurnPasses& turn,
               ChooseRows choose) {
  const comm::ProcessGrid& grid = model.Grid();
  if (model.Units().ValuesSharded()) {
    turn.entries.resize(static_cast<std::size_t>(passes));
    turn.places.resize(static_cast<std::size_t>(passes));
  }
  const bool chooses = grid.LastStage() && grid.Coordinates().tensor == 0;
  const auto most = static_cast<std::size_t>(model.LocalPlan().evaluation_entries);
  std::size_t first = 0;
  for (std::size_t begin = 0; begin < turn.entries.size(); begin += most) {
    const std::size_t count = std::min(most, turn.entries.size() - begin);
    const auto places = std::span(turn.places).subspan(begin, count);
    std::size_t rows = 0;
    for (const model::CachedPlaces& place : places) rows += place.asked.size();
    const std::vector<double>& logits =
        model.CachedLogits(std::span(turn.entries).subspan(begin, count), places);
    if (chooses) choose(logits, first, rows);
    first += rows;
  }
}

void ShareChoices(const comm::ProcessGrid& grid, void* choices, std::int64_t numbers) {
  if (grid.LastStage()) {
    grid.Over(comm::Group::kTensor).OnHost().Broadcast(Dtype::kFloat64, choices, numbers, 0);
  }
  grid.Over(comm::Group::kPipeline)
      .OnHost()
      .Broadcast(Dtype::kFloat64, choices, numbers, grid.Shape().pipeline - 1);
}

}  // namespace trireme::tasks
