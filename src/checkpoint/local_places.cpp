// PlaceOf: a walk over the names of hosts.
#include "local_places.hpp"

#include <cstddef>

namespace trireme::checkpoint {

LocalPlace PlaceOf(const comm::Hosts& hosts, int rank) {
  std::vector<std::vector<int>> ranks(hosts.Names().size());
  for (int other = 0; other < hosts.Ranks(); ++other) {
    ranks[static_cast<std::size_t>(hosts.Number(other))].push_back(other);
  }
  const auto own = static_cast<std::size_t>(hosts.Number(rank));
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
