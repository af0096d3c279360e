// Room for local checkpoints on the hosts' storage, compared before the first one is written.
#ifndef TRIREME_SRC_CHECKPOINT_LOCAL_ROOM_HPP_
#define TRIREME_SRC_CHECKPOINT_LOCAL_ROOM_HPP_

#include <cstdint>
#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

struct LocalNeed {
  std::string local;         // checkpoint.local
  std::string run;           // the run's folder below it
  std::string host;          // name of this rank's host
  std::int64_t bytes = 0;    // of one checkpoint, of this rank: its own part, and copies for others
  std::int64_t at_once = 0;  // checkpoints that are there while the last of them is written
};

// Collective. host: the ranks of this rank's host. What the first host without enough free space
// has and needs beyond the run's files there, and how many more hosts lack it: a sentence, the same
// on every rank. Empty: none lacks it, as far as file systems tell.
std::string LackOfRoom(const comm::Communicator& world, const comm::Communicator& host,
                       const LocalNeed& need);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_LOCAL_ROOM_HPP_
