// Hosts and cores of the first ranks of a job: whether a count of ranks has a core per thread.
#ifndef TRIREME_SRC_TASKS_SCALING_ROOMS_HPP_
#define TRIREME_SRC_TASKS_SCALING_ROOMS_HPP_

#include <string>
#include <vector>

#include "trireme/app/job.hpp"

namespace trireme::tasks {

struct Room {
  int nodes = 1;
  int threads = 1;  // of a rank; the most of any
  // Cores that these ranks may use, of all nodes; on GPUs, cards.
  int cores = 1;
  bool oversubscribed = false;  // on any node: more threads than cores, more ranks than cards
};

class Rooms {
 public:
  explicit Rooms(const app::Job& job);  // collective
  Room Of(int ranks) const;             // collective over the job's ranks; of the first `ranks`

 private:
  struct Neighbour {
    int rank = 0;     // of the world
    int threads = 1;  // that need a core, or a card, of their own
    std::vector<std::string> places;
  };
  const comm::Communicator& world_;
  const bool first_;  // of its node
  const int threads_;
  std::vector<Neighbour> node_;  // ranks of this node, this one included
};

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_ROOMS_HPP_
