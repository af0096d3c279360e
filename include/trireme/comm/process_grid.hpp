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

// Sizes of the grid's axes, and coordinates along them.
struct GridShape {
  int pipeline = 1, data = 1, context = 1, tensor = 1;
  int Ranks() const { return pipeline * data * context * tensor; }
  bool operator==(const GridShape&) const = default;
};

// Up to two divisors of `whole` accepted by `fits`: the nearest below and the nearest above `near`.
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

// Predicate of the model: true if it can run on these tensor and pipeline sizes; empty: no
// restriction. 1 and 1 always fit.
using Allowed = std::function<bool(std::int64_t tensor, std::int64_t pipeline)>;

// The deck's grid on `ranks` ranks; data = 0 takes what is left. Throws InputError with the deck's
// line when the layout does not fill them exactly, naming the nearest that do and are allowed.
GridShape ReadGrid(const Options& options, const deck::Deck& deck, int ranks,
                   const Allowed& allowed = {});

// Coordinates of `rank` on a grid, and the rank at coordinates.
GridShape Locate(int rank, const GridShape& shape);
int RankAt(const GridShape& coordinates, const GridShape& shape);

// Lines of the banner's map: host and coordinates of each rank. A long list is shortened in the
// middle.
std::vector<std::string> RankMap(const GridShape& shape, const Hosts& hosts);

// Use of the groups, besides their sizes.
struct GridOptions {
  bool sequence_parallel = false;
  Sharding sharding = Sharding::kNone;
  int shard_group = 0;  // ranks that share one copy; divides data x context; 0: all of them
};

// Ranks that share one copy of what is sharded; 1 if nothing is.
int ShardRanks(const GridShape& shape, const GridOptions& options);

// The deck's grid.sequence_parallel, grid.sharding, grid.shard_group on this grid. Throws
// InputError with the deck's line: shard_group that does not divide data x context (names the
// nearest that do), or given without sharding.
GridOptions ReadGridOptions(const Options& options, const deck::Deck& deck, const GridShape& shape);

class ProcessGrid {
 public:
  // Collective over `world`, which must outlive the grid. AgreedError (exit code 2) if the
  // deck's layout does not fit.
  ProcessGrid(const Communicator& world, const comm::Options& options, const deck::Deck& deck,
              const Allowed& allowed = {});
  // Collective. shape.Ranks() must be world.Size().
  ProcessGrid(const Communicator& world, const GridShape& shape, const GridOptions& options = {});
  // A grid of ranks that do not run, as rank `rank` would see it; no MPI. All groups are
  // planned ones (Communicator::Planned) with the ranks and sizes of the real grid, and transfers
  // over them move nothing and are recorded in Traffic() as the real ones are.
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
  // Groups of ranks that differ from this one in a single coordinate, ordered by it, unless said
  // otherwise.
  // Data: differs in two coordinates. Ranks that hold the same part of the model, or shards of it,
  // ordered by (data, context): rank data * C + context.
  const Communicator& Data() const { return data_; }
  // Shard: the shard_group consecutive ranks of Data() around this one, which together hold one
  // copy of sharded storage; alone without sharding.
  const Communicator& Shard() const { return RanksOf(Group::kShard); }
  // Ranks of Data() with this rank's place in their shard groups, which hold the same elements; all
  // of Data() without sharding. Over(Group::kData) is over this group.
  const Communicator& SameShard() const { return RanksOf(Group::kData); }
  // Ranks with blocks of the same sequences.
  const Communicator& Context() const { return RanksOf(Group::kContext); }
  const Communicator& Tensor() const { return RanksOf(Group::kTensor); }
  const Communicator& Pipeline() const { return RanksOf(Group::kPipeline); }
  // Ranks of all stages and slices with the same place in Data(), ordered by (pipeline, tensor).
  const Communicator& Replica() const { return RanksOf(Group::kReplica); }
  // First and last stage, with more than one stage; alone on others.
  const Communicator& Embedding() const { return RanksOf(Group::kEmbedding); }

  // Collective over the world, once. From here on Over(group) moves memory of this rank's GPU,
  // except kWorld and kReplica, which move host memory. staged: by way of the host.
  // pipeline_chunks: of the model on a stage.
  void UseGpu(const device::Stream& stream, bool staged, int pipeline_chunks);
  // Bytes of this rank's GPU that the library behind the channels takes for those of UseGpu and for
  // the one of KeyValueGroup(kv_heads): an estimate. 0 for a rank alone. Works on a planned grid.
  std::int64_t CommunicatorBytes(int pipeline_chunks, std::int64_t kv_heads) const;
  // Puts a channel in front of the transfers of a group of more than one rank: from here on
  // Over(group) starts them there (not those of OnHost). make: gets the transfers as they are,
  // which no ledger records. For faults and tests; after UseGpu, before anything transfers.
  using Decorator = std::function<std::unique_ptr<Channel>(const Collectives& plain)>;
  void Decorate(Group group, const Decorator& make);
  // Collective over `group`, which is not one of the grid's: makes a channel like theirs; null
  // without a GPU, in a group of one and before UseGpu. TakeExposed and CheckHealth include it
  // while it lives; it must not outlive the grid.
  std::unique_ptr<Channel> ChannelOver(const Communicator& group, Group name) const;
  // Seconds that this rank's computation stood still for transfers of all channels since the last
  // call; recorded in the ledger as waited, group by group.
  double TakeExposed() const;
  // Throws a RunError if a transfer of any channel cannot end, after GiveUp.
  void CheckHealth() const;
  // Abandons this rank's transfers in all channels; returns within seconds, whatever other ranks
  // do. For a rank that leaves alone: its GPU memory can be freed only afterwards. No transfer may
  // follow.
  void GiveUp() const noexcept;
  // Returns when `event` has happened; calls CheckHealth until then.
  void Await(const device::Event& event) const;
  bool Recordable() const;  // whether all transfers can be part of a device::Graph

  // Transfers in this rank's group of that name. RunError for kKeyValue (see KeyValueGroup).
  Collectives Over(Group group) const;
  // Collective over Tensor(). Tensor ranks with this rank's slice of `kv_heads` key/value heads:
  // tensor / kv_heads ranks if that is more than one, else alone.
  Communicator KeyValueGroup(std::int64_t kv_heads) const;
  Ledger& Traffic() const { return ledger_; }
  // The timeline of this rank's transfers in all groups, and of what finds it in Traffic(); null:
  // none. Nothing is queued on the GPU when it becomes null.
  void TraceInto(device::Recorder* recorder) const;

 private:
  using Listed = std::vector<std::pair<Group, Channel*>>;
  ProcessGrid(int planned_rank, const GridShape& shape, const GridOptions& options);
  void Split();
  std::vector<ChannelSetup> ChannelSetups(int pipeline_chunks) const;  // that UseGpu makes
  std::unique_ptr<Channel> NewChannel(const Communicator& group, ChannelSetup setup) const;
  const Communicator& RanksOf(Group group) const;
  Channel* ChannelOf(Group group) const;
  Communicator planned_world_;  // of a planned grid
  const Communicator* world_;
  GridShape shape_;
  GridShape at_;
  GridOptions options_;
  Communicator data_;
  std::array<Communicator, kGroups> groups_;  // those that RanksOf has, but the world
  mutable Ledger ledger_;
  device::Stream stream_;  // of the GPU, once there is one
  bool staged_ = false;
  mutable Listed listed_;  // all live channels; declared before its entries
  std::vector<std::pair<Group, std::unique_ptr<Channel>>> channels_;
  std::vector<std::pair<Group, std::unique_ptr<Channel>>> decorations_;  // the last one counts
  Ledger unrecorded_;  // transfers made by decorations
};

}  // namespace trireme::comm
