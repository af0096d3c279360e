// CountVotes and Describe: who holds other bits than most.
#include "replica_votes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "trireme/comm/rank_list.hpp"

namespace trireme::train {

namespace {

using Camps = std::map<std::uint64_t, std::vector<int>>;  // ranks by their hash

Corruption Judge(const Camps& camps) {
  Corruption found;
  std::size_t most = 0, with_most = 0;
  for (const auto& [hash, ranks] : camps) {
    found.holders.insert(found.holders.end(), ranks.begin(), ranks.end());
    if (ranks.size() > most) with_most = 0;
    most = std::max(most, ranks.size());
    if (ranks.size() == most) ++with_most;
  }
  found.certain = with_most == 1;
  for (const auto& [hash, ranks] : camps) {
    if (found.certain && ranks.size() == most) continue;
    found.wrong.insert(found.wrong.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(found.holders);
  std::ranges::sort(found.wrong);
  return found;
}

}  // namespace

std::vector<Corruption> CountVotes(const std::vector<Vote>& votes,
                                   const std::vector<kernels::StateBlock>& blocks) {
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Camps> ballots;
  for (const Vote& vote : votes) {
    ballots[{vote.block, vote.elements.begin, vote.elements.end}][vote.hash].push_back(
        static_cast<int>(vote.rank));
  }
  std::vector<Corruption> found;
  std::set<int> outvoted;
  for (const auto& [what, camps] : ballots) {
    if (camps.size() < 2) continue;
    Corruption corruption = Judge(camps);
    corruption.tensor = blocks.at(static_cast<std::size_t>(std::get<0>(what))).name;
    corruption.elements = {std::get<1>(what), std::get<2>(what)};
    if (corruption.certain) outvoted.insert(corruption.wrong.begin(), corruption.wrong.end());
    found.push_back(std::move(corruption));
  }
  std::erase_if(found, [&](const Corruption& corruption) {
    return !corruption.certain &&
           std::ranges::any_of(corruption.wrong, [&](int rank) { return outvoted.contains(rank); });
  });
  std::stable_partition(found.begin(), found.end(),
                        [](const Corruption& corruption) { return corruption.certain; });
  return found;
}

std::string Describe(const Corruption& corruption, const comm::Hosts& hosts) {
  const int size = hosts.Ranks();
  std::string who;
  constexpr std::size_t kNamed = 8;
  for (std::size_t i = 0; i < std::min(corruption.wrong.size(), kNamed); ++i) {
    const int rank = corruption.wrong[i];
    const char* const link = i == 0 ? "" : i + 1 == corruption.wrong.size() ? " and " : ", ";
    who += fmt::format("{}rank {} on {}", link, rank, hosts.Of(rank));
  }
  if (corruption.wrong.size() > kNamed) {
    who += fmt::format(" and {} more ranks", corruption.wrong.size() - kNamed);
  }
  const std::size_t copies = corruption.holders.size();
  if (!corruption.certain) {
    return fmt::format("{} differ in {}; with {} copies it cannot be told which one is wrong", who,
                       corruption.tensor, copies == 2 ? "two" : std::to_string(copies));
  }
  std::vector<int> right;
  std::ranges::set_difference(corruption.holders, corruption.wrong, std::back_inserter(right));
  return fmt::format("{} {} other bits of {} than {}, which agree", who,
                     corruption.wrong.size() == 1 ? "holds" : "hold", corruption.tensor,
                     comm::ListRanks(right, size));
}

}  // namespace trireme::train
