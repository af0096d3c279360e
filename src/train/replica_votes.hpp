// Votes of ranks on the elements that they hold alike, and who is outvoted.
#ifndef TRIREME_SRC_TRAIN_REPLICA_VOTES_HPP_
#define TRIREME_SRC_TRAIN_REPLICA_VOTES_HPP_

#include <cstdint>
#include <vector>

#include "trireme/train/replica_check.hpp"

namespace trireme::train {

// One rank's hash of elements of a block. Copied as bytes between ranks.
struct Vote {
  std::int64_t block = 0;
  Part elements;
  std::int64_t rank = 0;  // of the world
  std::uint64_t hash = 0;
};

// Elements on which the votes differ, those with a majority first, then in the order of the
// blocks. A tie that involves a rank outvoted elsewhere is explained by that and left out.
std::vector<Corruption> CountVotes(const std::vector<Vote>& votes,
                                   const std::vector<kernels::StateBlock>& blocks);

}  // namespace trireme::train

#endif  // TRIREME_SRC_TRAIN_REPLICA_VOTES_HPP_
