// PlanRounds: segments of a group, packed one after the other.
#include "rounds.hpp"

#include <algorithm>

namespace trireme::checkpoint {

std::vector<Round> PlanRounds(const std::vector<WritePlan>& plans, std::int64_t most) {
  std::vector<Round> rounds(1);
  for (std::size_t file = 0; file < plans.size(); ++file) {
    const WritePlan& plan = plans[file];
    for (std::size_t i = 0; i < plan.segments.size(); ++i) {
      const std::int64_t bytes = plan.segments[i].length;
      if (rounds.back().bytes > 0 && bytes > most - rounds.back().bytes) rounds.emplace_back();
      Round& round = rounds.back();
      round.segments.push_back({file, i, plan.holders[i], round.bytes});
      round.bytes += bytes;
    }
  }
  return rounds;
}

std::int64_t LargestRound(const std::vector<Round>& rounds) {
  std::int64_t largest = 0;
  for (const Round& round : rounds) largest = std::max(largest, round.bytes);
  return largest;
}

}  // namespace trireme::checkpoint
