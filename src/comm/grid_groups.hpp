// The groups of a process grid as a pure function of a rank, by which a real grid splits the world
// and a planned one is made.
#ifndef TRIREME_SRC_COMM_GRID_GROUPS_HPP_
#define TRIREME_SRC_COMM_GRID_GROUPS_HPP_

#include <cstdint>

#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {

// One rank's place in one kind of group.
struct GridGroup {
  int color = 0;  // the ranks of one group share it, and no others have it
  int rank = 0;   // within the group; the key by which MPI orders it
  int size = 1;
};

struct GridGroups {
  GridGroup data, context, tensor, pipeline, replica, embedding;  // cut out of the world
  GridGroup shard, same_shard;                                    // cut out of `data`
};
GridGroups GroupsOf(int rank, const GridShape& shape, const GridOptions& options);

// Tensor ranks with the same slice of `heads` key/value heads, cut out of a tensor group of `size`.
GridGroup KeyValueGroupOf(int rank, int size, std::int64_t heads);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_GRID_GROUPS_HPP_
