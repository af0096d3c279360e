// The four-dimensional process grid: rank = ((pipeline * D + data) * C + context) * T + tensor.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/channel.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/comm/options.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::comm {

// Sizes of the grid's axes; also used for coordinates along them.
struct GridShape {
  int pipeline = 1, data = 1, context = 1, tensor = 1;
  int Ranks() const { return pipeline * data * context * tensor; }
  bool operator==(const GridShape&) const = default;
};

// The nearest divisors of `whole` below and above `near` that `fits` accepts: 0 to 2 numbers.
template <typename Fits>
std::vector<std::int64_t> NearestDivisors(std::int64_t whole, std::int64_t near, Fits fits) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t divisor = 1; divisor <= whole; ++divisor) {
    if (whole % divisor != 0 || !fits(divisor)) continue;
    if (divisor < near) below = divisor;
    if (divisor > near && above == 0) above = divisor;
  }
  std::vector<std::int64_t> result;
  if (below > 0) result.push_back(below);
  if (above > 0) result.push_back(above);
  return result;
}

// "pipeline 2 x data 4 x context 1 x tensor 2".
std::string Describe(const GridShape& shape);

// Whether the model can run with these tensor and pipeline sizes; an empty function: no
// restriction. 1 and 1 must always fit.
using Allowed = std::function<bool(std::int64_t tensor, std::int64_t pipeline)>;

// The deck's grid on `ranks` ranks; data = 0: what the other axes leave. InputError with the deck's
// line and the nearest allowed layouts if the grid does not fill the ranks exactly.
GridShape ReadGrid(const Options& options, const deck::Deck& deck, int ranks,
                   const Allowed& allowed = {});

// Coordinates of `rank` on a grid, and the rank at given coordinates.
GridShape Locate(int rank, const GridShape& shape);
int RankAt(const GridShape& coordinates, const GridShape& shape);

// Lines of the banner's map: host and coordinates of each rank. A long map is shortened in the
// middle.
std::vector<std::string> RankMap(const GridShape& shape, const Hosts& hosts);

// What the groups are used for, besides the sizes of the axes.
struct GridOptions {
  bool sequence_parallel = false;
  Sharding sharding = Sharding::kNone;
  int shard_group = 0;  // ranks that share one copy; divides data x context; 0: all of them
};

// Number of ranks that share one copy of sharded state; 1 without sharding.
int ShardRanks(const GridShape& shape, const GridOptions& options);

// Reads grid.sequence_parallel, grid.sharding and grid.shard_group. InputError with the deck's line
// if shard_group does not divide data x context (it names the nearest that do) or is given without
// sharding, or if sequence_parallel is given with one tensor rank.
GridOptions ReadGridOptions(const Options& options, const deck::Deck& deck, const GridShape& shape);

class ProcessGrid {
 public:
  // Collective over `world`, which must outlive the grid. AgreedError (exit code 2) if the deck's
  // layout does not fit.
  ProcessGrid(const Communicator& world, const comm::Options& options, const deck::Deck& deck,
              const Allowed& allowed = {});
  // Collective. shape.Ranks() must equal world.Size().
  ProcessGrid(const Communicator& world, const GridShape& shape, const GridOptions& options = {});
  // The grid as rank `rank` would see it, without MPI or running ranks. All groups are planned
  // (Communicator::Planned) with the real ranks and sizes. Their transfers move nothing, but
  // Traffic() records them as real ones.
  static ProcessGrid Planned(const GridShape& shape, const GridOptions& options, int rank);
  ProcessGrid(const ProcessGrid&) = delete;
  ProcessGrid& operator=(const ProcessGrid&) = delete;

  const GridShape& Shape() const { return shape_; }
  const GridShape& Coordinates() const { return at_; }  // of this rank
  const GridOptions& Options() const { return options_; }
  bool SequenceParallel() const { return options_.sequence_parallel; }
  Sharding Shards() const { return options_.sharding; }
  bool FirstStage() const { return at_.pipeline == 0; }
  bool LastStage() const { return at_.pipeline == shape_.pipeline - 1; }

  const Communicator& World() const { return *world_; }
  // The groups below. Unless a comment says otherwise, the ranks of a group differ in one
  // coordinate and are ordered by it.
  // Ranks that hold the same part of the model, or shards of it. They differ in two coordinates:
  // rank data * C + context in the group.
  const Communicator& Data() const { return data_; }
  // The shard_group consecutive ranks of Data(), this one among them, that together hold one copy
  // of sharded state; this rank alone without sharding.
  const Communicator& Shard() const { return RanksOf(Group::kShard); }
  // Ranks of Data() that have the same place in their shard groups, and so hold the same elements;
  // all of Data() without sharding. Over(Group::kData) transfers in this group.
  const Communicator& SameShard() const { return RanksOf(Group::kData); }
  // Ranks that hold blocks of the same sequences.
  const Communicator& Context() const { return RanksOf(Group::kContext); }
  const Communicator& Tensor() const { return RanksOf(Group::kTensor); }
  const Communicator& Pipeline() const { return RanksOf(Group::kPipeline); }
  // All stages and slices with the same place in Data(), ordered by (pipeline, tensor).
  const Communicator& Replica() const { return RanksOf(Group::kReplica); }
  // First and last stage if there are several stages; a middle stage is alone.
  const Communicator& Embedding() const { return RanksOf(Group::kEmbedding); }

  // Collective over the world, once. From here on Over(group) moves memory of this rank's GPU,
  // except for kWorld and kReplica, which move host memory. staged: transfers go through host
  // memory. pipeline_chunks: model chunks per stage.
  void UseGpu(const device::Stream& stream, bool staged, int pipeline_chunks);
  // Estimated bytes of this rank's GPU that the transfer library takes for the channels of UseGpu
  // and KeyValueGroup(kv_heads). 0 on one rank. Also works on a planned grid.
  std::int64_t CommunicatorBytes(int pipeline_chunks, std::int64_t kv_heads) const;
  // Puts a channel in front of a group's transfers (not those of OnHost); does nothing for a group
  // of one rank. make: receives the undecorated transfers, which no ledger records. For injected
  // faults and tests; to be called after UseGpu and before the first transfer.
  using Decorator = std::function<std::unique_ptr<Channel>(const Collectives& plain)>;
  void Decorate(Group group, const Decorator& make);
  // Collective over `group`, which is not one of the grid's: makes a channel of the same kind. Null
  // without a GPU, before UseGpu and for a group of one rank. TakeExposed and CheckHealth include
  // the channel while it lives; it must not outlive the grid.
  std::unique_ptr<Channel> ChannelOver(const Communicator& group, Group name) const;
  // Seconds that this rank's computation waited for transfers of all channels since the last call;
  // also adds them to the ledger, by group.
  double TakeExposed() const;
  // Throws a RunError, after GiveUp, if a transfer of any channel cannot end.
  void CheckHealth() const;
  // Abandons this rank's transfers in all channels; returns within seconds, whatever other ranks
  // do. A rank that leaves alone must call it before it frees GPU memory. No transfer may follow.
  void GiveUp() const noexcept;
  // Returns when `event` has happened; calls CheckHealth while it waits.
  void Await(const device::Event& event) const;
  bool Recordable() const;  // whether all transfers can be part of a device::Graph

  // Transfers in this rank's group of that kind. RunError for kKeyValue (see KeyValueGroup).
  Collectives Over(Group group) const;
  // Collective over Tensor(). The tensor ranks that hold the same slice of `kv_heads` key/value
  // heads as this one: tensor / kv_heads ranks if that exceeds 1, else this rank alone.
  Communicator KeyValueGroup(std::int64_t kv_heads) const;
  Ledger& Traffic() const { return ledger_; }
  // Sets the timeline of this rank's transfers in all groups, and of others that read it from
  // Traffic(); null: none. Before it becomes null, the GPU's queues must be empty.
  void TraceInto(device::Recorder* recorder) const;

 private:
  using Listed = std::vector<std::pair<Group, Channel*>>;
  ProcessGrid(int planned_rank, const GridShape& shape, const GridOptions& options);
  void Split();
  std::vector<ChannelSetup> ChannelSetups(int pipeline_chunks) const;  // those that UseGpu makes
  std::unique_ptr<Channel> NewChannel(const Communicator& group, ChannelSetup setup) const;
  const Communicator& RanksOf(Group group) const;
  Channel* ChannelOf(Group group) const;
  Communicator planned_world_;  // used by a planned grid only
  const Communicator* world_;
  GridShape shape_;
  GridShape at_;
  GridOptions options_;
  Communicator data_;
  std::array<Communicator, kGroups> groups_;  // by Group, for RanksOf; kWorld is unused
  mutable Ledger ledger_;
  device::Stream stream_;  // the GPU's, after UseGpu
  bool staged_ = false;
  mutable Listed listed_;  // live channels, whose destructors use it: declared before them
  std::vector<std::pair<Group, std::unique_ptr<Channel>>> channels_;
  std::vector<std::pair<Group, std::unique_ptr<Channel>>> decorations_;  // a group's last counts
  Ledger unrecorded_;  // takes the transfers that decorations make
};

}  // namespace trireme::comm
