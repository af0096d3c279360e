// GroupsOf: colours, ranks and sizes of all groups of a grid, from the coordinates alone.
#include "grid_groups.hpp"

namespace trireme::comm {

GridGroups GroupsOf(int rank, const GridShape& shape, const GridOptions& options) {
  const GridShape at = Locate(rank, shape);
  const int replicas = shape.data * shape.context;
  // A colour counts the coordinates in which its ranks agree.
  const int replica = at.data * shape.context + at.context;
  const int lane = replica * shape.tensor + at.tensor;  // stages of one lane exchange activations
  const int row = at.pipeline * replicas + replica;
  const int part = at.pipeline * shape.tensor + at.tensor;
  const int ring = part * shape.data + at.data;

  GridGroups groups;
  groups.data = {part, replica, replicas};
  groups.context = {ring, at.context, shape.context};
  groups.tensor = {row, at.tensor, shape.tensor};
  groups.pipeline = {lane, at.pipeline, shape.pipeline};
  groups.replica = {replica, part, shape.pipeline * shape.tensor};
  const bool first = at.pipeline == 0, last = at.pipeline == shape.pipeline - 1;
  groups.embedding = {shape.Ranks() + rank, 0, 1};  // alone: a colour that no other rank has
  if (first != last) groups.embedding = {lane, first ? 0 : 1, 2};

  const int sharers = ShardRanks(shape, options);
  groups.shard = {replica / sharers, replica % sharers, sharers};
  groups.same_shard = {replica % sharers, replica / sharers, replicas / sharers};
  return groups;
}

GridGroup KeyValueGroupOf(int rank, int size, std::int64_t heads) {
  if (size <= heads) return {rank, 0, 1};
  const auto head = [&](int of) { return static_cast<int>(of * heads / size); };
  GridGroup group{head(rank), 0, 0};
  for (int other = 0; other < size; ++other) {
    if (head(other) != group.color) continue;
    if (other < rank) ++group.rank;
    ++group.size;
  }
  return group;
}

}  // namespace trireme::comm
