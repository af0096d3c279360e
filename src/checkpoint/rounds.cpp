// PlanRounds: segments of a group, packed one after the other.
#include "rounds.hpp"

#include <algorithm>
#include <map>

namespace trireme::checkpoint {

std::vector<Round> PlanRounds(const std::vector<WritePlan>& plans, const std::vector<int>& members,
                              std::int64_t most) {
  std::map<int, int> member_of;  // by world rank
  for (std::size_t i = 0; i < members.size(); ++i) member_of[members[i]] = static_cast<int>(i);
  std::vector<Round> rounds(1);
  for (std::size_t file = 0; file < plans.size(); ++file) {
    for (std::size_t i = 0; i < plans[file].holders.size(); ++i) {
      const auto member = member_of.find(plans[file].holders[i]);
      if (member == member_of.end()) continue;
      const std::int64_t bytes = plans[file].sums.segments[i].length;
      if (rounds.back().bytes > 0 && bytes > most - rounds.back().bytes) rounds.emplace_back();
      Round& round = rounds.back();
      round.segments.push_back({file, i, member->second, round.bytes});
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

void ListHashes(const std::vector<Round>& rounds, const std::vector<WritePlan>& plans,
                std::vector<std::uint64_t>& list) {
  std::fill(list.begin(), list.end(), 0);
  for (const Round& round : rounds) {
    for (const StagedSegment& staged : round.segments) {
      std::size_t place = staged.segment;
      for (std::size_t file = 0; file < staged.file; ++file) {
        place += plans[file].sums.segments.size();
      }
      list[place] = plans[staged.file].sums.segments[staged.segment].hash;
    }
  }
}

void TakeHashes(const std::vector<std::uint64_t>& list, std::vector<WritePlan>& plans) {
  std::size_t next = 0;
  for (WritePlan& plan : plans) {
    for (Segment& segment : plan.sums.segments) segment.hash = list[next++];
  }
}

}  // namespace trireme::checkpoint
