// ProcessGrid: cuts the world into the groups of the parallel layout, once.
#include "trireme/comm/process_grid.hpp"

#include <fmt/format.h>

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

std::string Describe(const GridShape& shape) {
  return fmt::format("pipeline {} x data {} x context {} x tensor {}", shape.pipeline, shape.data,
                     shape.context, shape.tensor);
}

ProcessGrid::ProcessGrid(const Communicator& world, const comm::Options& options,
                         const input::Deck& deck, const Allowed& allowed)
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
  if (options.shard_group != 0 && shape.data * shape.context % options.shard_group != 0) {
    throw RunError(
        fmt::format("shards over {} ranks in a grid of {}", options.shard_group, Describe(shape)));
  }
  Split();
}

void ProcessGrid::Split() {
  at_ = Locate(world_->Rank(), shape_);
  // The ranks that share a colour differ in the coordinates that the colour leaves out.
  const int replica = at_.data * shape_.context + at_.context;
  const int lane = replica * shape_.tensor + at_.tensor;  // stages of one lane exchange activations
  const int row = at_.pipeline * shape_.data * shape_.context + replica;
  const int part = at_.pipeline * shape_.tensor + at_.tensor;
  const int ring = part * shape_.data + at_.data;
  data_ = world_->Split(part, replica);
  context_ = world_->Split(ring, at_.context);
  tensor_ = world_->Split(row, at_.tensor);
  pipeline_ = world_->Split(lane, at_.pipeline);
  replica_ = world_->Split(replica, at_.pipeline * shape_.tensor + at_.tensor);
  const bool paired = shape_.pipeline > 1 && (FirstStage() || LastStage());
  const int alone = shape_.Ranks() + world_->Rank();  // a colour that nobody shares
  embedding_ = world_->Split(paired ? lane : alone, at_.pipeline);
  SplitShards();
}

void ProcessGrid::SplitShards() {
  int group = 1;
  if (options_.sharding != Sharding::kNone) {
    group = options_.shard_group == 0 ? data_.Size() : options_.shard_group;
  }
  shard_ = data_.Split(data_.Rank() / group, data_.Rank());
  same_shard_ = data_.Split(data_.Rank() % group, data_.Rank());
}

Collectives ProcessGrid::Over(Group group) const {
  const auto over = [&](const Communicator& ranks) {
    const bool here = group == Group::kWorld || group == Group::kReplica;  // host memory
    return Collectives(ranks, group, ledger_, ChannelOf(group), here ? device::Stream{} : stream_);
  };
  switch (group) {
    case Group::kWorld:
      return over(*world_);
    case Group::kData:
      return over(same_shard_);
    case Group::kShard:
      return over(shard_);
    case Group::kContext:
      return over(context_);
    case Group::kTensor:
      return over(tensor_);
    case Group::kPipeline:
      return over(pipeline_);
    case Group::kEmbedding:
      return over(embedding_);
    case Group::kReplica:
      return over(replica_);
    case Group::kKeyValue:
      break;
  }
  throw RunError("the grid has no key/value group: KeyValueGroup splits it for a model");
}

Communicator ProcessGrid::KeyValueGroup(std::int64_t kv_heads) const {
  const int rank = tensor_.Rank(), size = tensor_.Size();
  const bool shared = size > kv_heads;
  const auto head = static_cast<int>(rank * kv_heads / size);
  return tensor_.Split(shared ? head : rank, rank);
}

}  // namespace trireme::comm
