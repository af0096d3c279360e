// ProcessGrid: cuts the world into the groups of the parallel layout, once.
#include "trireme/comm/process_grid.hpp"

#include <fmt/format.h>

#include "grid_groups.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {

GridShape Locate(int rank, const GridShape& shape) {
  GridShape at;
  at.tensor = rank % shape.tensor;
  rank /= shape.tensor;
  at.context = rank % shape.context;
  rank /= shape.context;
  at.data = rank % shape.data;
  at.pipeline = rank / shape.data;
  return at;
}

int RankAt(const GridShape& coordinates, const GridShape& shape) {
  return ((coordinates.pipeline * shape.data + coordinates.data) * shape.context +
          coordinates.context) *
             shape.tensor +
         coordinates.tensor;
}

int ShardRanks(const GridShape& shape, const GridOptions& options) {
  if (options.sharding == Sharding::kNone) return 1;
  return options.shard_group == 0 ? shape.data * shape.context : options.shard_group;
}

std::string Describe(const GridShape& shape) {
  return fmt::format("pipeline {} x data {} x context {} x tensor {}", shape.pipeline, shape.data,
                     shape.context, shape.tensor);
}

namespace {

void CheckShards(const GridShape& shape, const GridOptions& options) {
  if (options.shard_group == 0 || shape.data * shape.context % options.shard_group == 0) return;
  throw RunError(
      fmt::format("shards over {} ranks in a grid of {}", options.shard_group, Describe(shape)));
}

Communicator CutOut(const Communicator& whole, const GridGroup& group, const char* name) {
  if (whole.IsPlanned()) return Communicator::Planned(group.rank, group.size);
  return whole.Split(group.color, group.rank, name);
}

}  // namespace

ProcessGrid::ProcessGrid(const Communicator& world, const comm::Options& options,
                         const deck::Deck& deck, const Allowed& allowed)
    : world_(&world) {
  world.Together([&] {
    shape_ = ReadGrid(options, deck, world.Size(), allowed);
    options_ = ReadGridOptions(options, deck, shape_);
  });
  Split();
}

ProcessGrid::ProcessGrid(const Communicator& world, const GridShape& shape,
                         const GridOptions& options)
    : world_(&world), shape_(shape), options_(options) {
  if (shape.Ranks() != world.Size()) {
    throw RunError(fmt::format("a grid of {} on {} ranks", Describe(shape), world.Size()));
  }
  CheckShards(shape, options);
  Split();
}

ProcessGrid::ProcessGrid(int planned_rank, const GridShape& shape, const GridOptions& options)
    : planned_world_(Communicator::Planned(planned_rank, shape.Ranks())),
      world_(&planned_world_),
      shape_(shape),
      options_(options) {
  Split();
}

ProcessGrid ProcessGrid::Planned(const GridShape& shape, const GridOptions& options, int rank) {
  CheckShards(shape, options);
  return {rank, shape, options};
}

void ProcessGrid::Split() {
  at_ = Locate(world_->Rank(), shape_);
  const GridGroups groups = GroupsOf(world_->Rank(), shape_, options_);
  data_ = CutOut(*world_, groups.data, "replicas");
  context_ = CutOut(*world_, groups.context, NameOf(Group::kContext));
  tensor_ = CutOut(*world_, groups.tensor, NameOf(Group::kTensor));
  pipeline_ = CutOut(*world_, groups.pipeline, NameOf(Group::kPipeline));
  replica_ = CutOut(*world_, groups.replica, NameOf(Group::kReplica));
  embedding_ = CutOut(*world_, groups.embedding, NameOf(Group::kEmbedding));
  shard_ = CutOut(data_, groups.shard, NameOf(Group::kShard));
  same_shard_ = CutOut(data_, groups.same_shard, NameOf(Group::kData));
}

const Communicator& ProcessGrid::RanksOf(Group group) const {
  switch (group) {
    case Group::kWorld:
      return *world_;
    case Group::kData:
      return same_shard_;
    case Group::kShard:
      return shard_;
    case Group::kContext:
      return context_;
    case Group::kTensor:
      return tensor_;
    case Group::kPipeline:
      return pipeline_;
    case Group::kEmbedding:
      return embedding_;
    case Group::kReplica:
      return replica_;
    case Group::kKeyValue:
      break;
  }
  throw RunError("the grid has no key/value group: KeyValueGroup splits it for a model");
}

Collectives ProcessGrid::Over(Group group) const {
  const bool on_host = group == Group::kWorld || group == Group::kReplica;
  return {RanksOf(group), group, ledger_, ChannelOf(group), on_host ? device::Stream{} : stream_};
}

Communicator ProcessGrid::KeyValueGroup(std::int64_t kv_heads) const {
  return CutOut(tensor_, KeyValueGroupOf(tensor_.Rank(), tensor_.Size(), kv_heads),
                NameOf(Group::kKeyValue));
}

}  // namespace trireme::comm
