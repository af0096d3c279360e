// PlaceOf: a walk over the names of hosts.
#include "local_places.hpp"

#include <cstddef>
#include <string>
#include <unordered_map>

namespace trireme::checkpoint {

LocalPlace PlaceOf(const comm::Hosts& hosts, int rank) {
  std::unordered_map<std::string, std::size_t> numbers;
  std::vector<std::vector<int>> ranks;  // [hosts]
  for (int other = 0; other < hosts.Ranks(); ++other) {
    const auto [found, isnew] = numbers.try_emplace(hosts.Of(other), ranks.size());
    if (isnew) ranks.emplace_back();
    ranks[found->second].push_back(other);
  }
  const std::size_t own = numbers.at(hosts.Of(rank));
  LocalPlace place;
  place.host = static_cast<int>(own);
  place.hosts = static_cast<int>(ranks.size());
  place.ranks = ranks[own];
  if (ranks.size() == 1) return place;
  std::size_t at = 0;  // place of `rank` on its host
  while (place.ranks[at] != rank) ++at;
  const std::vector<int>& next = ranks[(own + 1) % ranks.size()];
  place.partner = next[at % next.size()];
  const std::vector<int>& before = ranks[(own + ranks.size() - 1) % ranks.size()];
  for (std::size_t i = at; i < before.size(); i += place.ranks.size()) {
    place.clients.push_back(before[i]);
  }
  return place;
}

}  // namespace trireme::checkpoint
