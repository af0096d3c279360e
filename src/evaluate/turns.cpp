// Agreement on turns, and one rank's choices for all of a replica.
#include "trireme/evaluate/turns.hpp"

#include "trireme/base/error.hpp"

namespace trireme::evaluate {

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

void ShareChoices(const comm::ProcessGrid& grid, void* choices, std::int64_t numbers) {
  if (grid.LastStage()) {
    grid.Over(comm::Group::kTensor).OnHost().Broadcast(Dtype::kFloat64, choices, numbers, 0);
  }
  grid.Over(comm::Group::kPipeline)
      .OnHost()
      .Broadcast(Dtype::kFloat64, choices, numbers, grid.Shape().pipeline - 1);
}

}  // namespace trireme::evaluate
