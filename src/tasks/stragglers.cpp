// SlowestRank: stages of a pipeline have different work, so each rank is compared with its own.
#include "stragglers.hpp"

#include <cstdint>
#include <vector>

namespace trireme::tasks {

Slowest SlowestRank(const comm::ProcessGrid& grid, double seconds) {
  const comm::Communicator& world = grid.World();
  const auto stage = static_cast<std::size_t>(grid.Coordinates().pipeline);
  const int stages = grid.Shape().pipeline;
  std::vector<double> means(static_cast<std::size_t>(stages));
  const int ranks = grid.Shape().Ranks() / stages;
  means[stage] = seconds / ranks;
  world.Sum(means);
  const double mean = means[stage];
  const double ratio = mean > 0 ? seconds / mean : 1;
  const bool slowest = ratio >= world.Max(ratio);
  Slowest result;
  result.rank = static_cast<int>(world.Min(std::int64_t{slowest ? world.Rank() : world.Size()}));
  std::vector<double> facts = {0, 0};
  if (world.Rank() == result.rank) facts = {seconds, mean};
  world.Sum(facts);
  result.seconds = facts[0];
  result.mean = facts[1];
  return result;
}

}  // namespace trireme::tasks
