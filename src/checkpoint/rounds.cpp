// PlanRounds: segments of a group, packed one after the other.
#include "rounds.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

namespace trireme::checkpoint {

namespace {

using ReportedHash = std::array<std::uint64_t, 3>;  // file, segment, hash

}  // namespace

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

std::string HashReport(const std::vector<Round>& rounds, const std::vector<WritePlan>& plans) {
  std::string report;
  for (const Round& round : rounds) {
    for (const auto& [file, segment, member, place] : round.segments) {
      const ReportedHash entry = {file, segment, plans[file].sums.segments[segment].hash};
      report.append(reinterpret_cast<const char*>(entry.data()), sizeof(entry));
    }
  }
  return report;
}

void TakeHashes(const std::string& report, std::vector<WritePlan>& plans) {
  for (std::size_t at = 0; at < report.size(); at += sizeof(ReportedHash)) {
    ReportedHash entry{};
    std::memcpy(entry.data(), report.data() + at, sizeof(entry));
    const auto [file, segment, hash] = entry;
    plans[file].sums.segments[segment].hash = hash;
  }
}

}  // namespace trireme::checkpoint
