// Places of ranks on hosts, and partners: who keeps the copy of whose local checkpoint.
#ifndef TRIREME_SRC_CHECKPOINT_LOCAL_PLACES_HPP_
#define TRIREME_SRC_CHECKPOINT_LOCAL_PLACES_HPP_

#include <vector>

#include "trireme/comm/hosts.hpp"

namespace trireme::checkpoint {

// One rank's view. Hosts are numbered by their first ranks; the last one's partner is the first.
struct LocalPlace {
  int host = 0, hosts = 1;        // number of the rank's host; their count
  std::vector<int> ranks;         // world ranks of that host, ascending
  int partner = -1;               // world rank on the next host; -1: there is one host alone
  std::vector<int> clients = {};  // world ranks whose copies this rank keeps, ascending
};

// hosts: name of each world rank's host. A rank's partner has the same place on the next host,
// modulo its number of ranks.
LocalPlace PlaceOf(const comm::Hosts& hosts, int rank);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_LOCAL_PLACES_HPP_
