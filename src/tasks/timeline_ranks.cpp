// Timeline: which ranks are recorded, and which rank a message came from.
#include <algorithm>

#include "timeline.hpp"

namespace trireme::tasks {

std::vector<int> TracedRanks(const comm::GridShape& shape, int most) {
  std::vector<int> ranks;
  comm::GridShape at;
  for (at.data = 0; at.data < shape.data; ++at.data) {
    for (at.context = 0; at.context < shape.context; ++at.context) {
      for (at.tensor = 0; at.tensor < shape.tensor; ++at.tensor) {
        for (at.pipeline = 0; at.pipeline < shape.pipeline; ++at.pipeline) {
          if (static_cast<int>(ranks.size()) == most) break;
          ranks.push_back(comm::RankAt(at, shape));
        }
      }
    }
  }
  std::ranges::sort(ranks);
  return ranks;
}

int PeerOf(const device::Slice& message, int rank, const comm::GridShape& shape) {
  comm::GridShape at = comm::Locate(rank, shape);
  switch (static_cast<comm::Group>(message.group)) {
    case comm::Group::kPipeline:
      at.pipeline = message.peer;
      break;
    case comm::Group::kContext:
      at.context = message.peer;
      break;
    default:
      return -1;
  }
  return comm::RankAt(at, shape);
}

}  // namespace trireme::tasks
