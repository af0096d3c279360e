// The rounds in which a writer's group moves its segments through shared memory.
#ifndef TRIREME_SRC_CHECKPOINT_ROUNDS_HPP_
#define TRIREME_SRC_CHECKPOINT_ROUNDS_HPP_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "write_plan.hpp"

namespace trireme::checkpoint {

// A segment on its way from the rank that holds it to its writer.
struct StagedSegment {
  std::size_t file = 0;     // index of its plan
  std::size_t segment = 0;  // index in the plan's segments
  int member = 0;           // rank in the group that holds it
  std::int64_t place = 0;   // bytes from the begin of the round's memory
};

struct Round {
  std::vector<StagedSegment> segments;  // in the order of file and offset
  std::int64_t bytes = 0;
};

// Segments of the group's plans, in rounds of at most `most` bytes; a longer segment, such as a
// large header, has a round of its own. Pure: the same on every rank of the group.
std::vector<Round> PlanRounds(const std::vector<WritePlan>& plans, std::int64_t most);

// Bytes of the largest round.
std::int64_t LargestRound(const std::vector<Round>& rounds);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_ROUNDS_HPP_
