// ProcessGrid: cuts the world into the groups of the parallel layout, once.
#include "trireme/comm/process_grid.hpp"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <numeric>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {

GridShape Locate(int rank, const GridShape& shape) {
  const int row = rank / shape.tensor, part = row / shape.context;
  return {.pipeline = part / shape.data,
          .data = part % shape.data,
          .context = row % shape.context,
          .tensor = rank % shape.tensor};
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

// One rank's place in one of its groups.
struct GridGroup {
  int color = 0;  // the same for all ranks of a group, different for other groups
  int rank = 0;   // in the group; the key by which MPI orders its ranks
  int size = 1;
};

struct GridGroups {
  GridGroup data;
  std::vector<std::pair<Group, GridGroup>> others;  // kShard and kData: cut out of `data`
};

// A rank's groups, from its coordinates alone, in the order in which all ranks split them off. Real
// grids split the world by them; planned grids are made from them.
GridGroups GroupsOf(int rank, const GridShape& shape, const GridOptions& options) {
  const GridShape at = Locate(rank, shape);
  const int replicas = shape.data * shape.context;
  // A group's colour encodes the coordinates that its ranks have in common.
  const int replica = at.data * shape.context + at.context;
  const int lane = replica * shape.tensor + at.tensor;  // stages of a lane exchange activations
  const int row = at.pipeline * replicas + replica;
  const int part = at.pipeline * shape.tensor + at.tensor;
  const int ring = part * shape.data + at.data;

  const bool first = at.pipeline == 0, last = at.pipeline == shape.pipeline - 1;
  const GridGroup alone = {shape.Ranks() + rank, 0, 1};  // with a colour of its own
  const int sharers = ShardRanks(shape, options);
  return {{part, replica, replicas},
          {{Group::kContext, {ring, at.context, shape.context}},
           {Group::kTensor, {row, at.tensor, shape.tensor}},
           {Group::kPipeline, {lane, at.pipeline, shape.pipeline}},
           {Group::kReplica, {replica, part, shape.pipeline * shape.tensor}},
           {Group::kEmbedding, first == last ? alone : GridGroup{lane, first ? 0 : 1, 2}},
           {Group::kShard, {replica / sharers, replica % sharers, sharers}},
           {Group::kData, {replica % sharers, replica / sharers, replicas / sharers}}}};
}

// The tensor ranks with the same slice of `heads` key/value heads, in a tensor group of `size`.
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

void CheckShards(const GridShape& shape, const GridOptions& options) {
  if (options.shard_group == 0 || shape.data * shape.context % options.shard_group == 0) return;
  throw RunError(
      fmt::format("shards over {} ranks in a grid of {}", options.shard_group, Describe(shape)));
}

Communicator CutOut(const Communicator& whole, const GridGroup& group, const char* name) {
  if (whole.IsPlanned()) return Communicator::Planned(group.rank, group.size);
  return whole.Split(group.color, group.rank, name);
}

// Reading the sizes of the grid's axes, and the error message if the layout does not fit the job.

constexpr double kStepsOfDistance = 1e6;  // rounding steps per factor of e

// The axes other than data: their sizes, which may be far too large in a deck, and keys.
enum { kTensor, kPipeline, kContext, kAxes };
using Sizes = std::array<std::int64_t, kAxes>;
constexpr const char* kNames[kAxes] = {"grid.tensor", "grid.pipeline", "grid.context"};

// Saturates instead of overflowing: products of a deck's numbers are only compared.
std::int64_t Times(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return a > kMost / b ? kMost : a * b;
}

bool Divides(std::int64_t part, std::int64_t whole) { return whole % part == 0; }

std::string Count(std::int64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

std::int64_t Product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, Times);
}

bool Fits(const Allowed& allowed, const Sizes& sizes) {
  return allowed(sizes[kTensor], sizes[kPipeline]);
}

// "grid.tensor = 2", with the size from `sizes`, for each axis that is above 1 in `asked`, except
// for axis `left_out`. Axes for which the user asked no size above 1 are not worth naming.
std::vector<std::string> Named(const Sizes& asked, const Sizes& sizes, std::size_t left_out) {
  std::vector<std::string> named;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    if (asked[axis] == 1 || axis == left_out) continue;
    named.push_back(fmt::format("{} = {}", kNames[axis], sizes[axis]));
  }
  return named;
}

// "a with b and c"; "a" if there are no others.
std::string With(const std::string& first, const std::vector<std::string>& others) {
  return others.empty() ? first : fmt::format("{} with {}", first, fmt::join(others, " and "));
}

// "grid.tensor = 2 or 4 with grid.pipeline = 2": changes one axis. Empty if no size of it fits.
std::string OneAxis(std::size_t axis, const Sizes& asked, std::int64_t ranks,
                    const Allowed& allowed) {
  Sizes sizes = asked;
  sizes[axis] = 1;
  const std::int64_t kept = Product(sizes);
  if (asked[axis] == 1 || !Divides(kept, ranks)) return {};
  const auto values = NearestDivisors(ranks / kept, asked[axis], [&](std::int64_t size) {
    sizes[axis] = size;
    return Fits(allowed, sizes);
  });
  if (values.empty()) return {};
  return With(fmt::format("{} = {}", kNames[axis], fmt::join(values, " or ")),
              Named(asked, asked, axis));
}

// Distance of `sizes` from `asked`: the sum of the logarithms of the factors between them, rounded
// so that equal products compare as equal.
std::int64_t Distance(const Sizes& asked, const Sizes& sizes) {
  double distance = 0;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    const auto factor = static_cast<double>(sizes[axis]) / static_cast<double>(asked[axis]);
    distance += std::abs(std::log(factor));
  }
  return std::llround(distance * kStepsOfDistance);
}

// Changes several axes: the two nearest layouts. An axis of size 1 keeps it.
std::vector<std::string> SeveralAxes(const Sizes& asked, std::int64_t ranks,
                                     const Allowed& allowed) {
  std::vector<Sizes> layouts;
  const auto each = [&](std::int64_t whole, std::int64_t axis_asked, const auto& then) {
    for (std::int64_t size = axis_asked == 1 ? 1 : whole; size >= 1; --size) {
      if (Divides(size, whole)) then(size);
    }
  };
  each(ranks, asked[kTensor], [&](std::int64_t tensor) {
    each(ranks / tensor, asked[kPipeline], [&](std::int64_t pipeline) {
      if (!allowed(tensor, pipeline)) return;
      each(ranks / tensor / pipeline, asked[kContext], [&](std::int64_t context) {
        layouts.push_back({tensor, pipeline, context});
      });
    });
  });
  std::stable_sort(layouts.begin(), layouts.end(), [&](const Sizes& a, const Sizes& b) {
    return Distance(asked, a) < Distance(asked, b);
  });
  layouts.resize(std::min<std::size_t>(layouts.size(), 2));
  std::vector<std::string> texts;
  for (const Sizes& sizes : layouts) {
    std::vector<std::string> named = Named(asked, sizes, kAxes);
    const std::string first = named.front();
    named.erase(named.begin());
    texts.push_back(With(first, named));
  }
  return texts;
}

// The nearest numbers of ranks, below and above `ranks`, that are multiples of `unit`.
std::string NearestRanks(std::int64_t unit, std::int64_t ranks) {
  const std::int64_t below = ranks / unit * unit;
  if (below == 0) return Count(unit);
  return fmt::format("{} or {}", below, Count(Times(ranks / unit + 1, unit)));
}

// The axis whose line the message names: the first that alone does not divide the ranks, else the
// first that is above 1.
const char* Blamed(const Sizes& asked, std::int64_t ranks) {
  auto axis = std::ranges::find_if_not(asked, [&](auto size) { return Divides(size, ranks); });
  if (axis == asked.end()) axis = std::ranges::find_if(asked, [](auto size) { return size > 1; });
  return axis == asked.end() ? kNames[kTensor] : kNames[axis - asked.begin()];
}

// Throws an InputError, since tensor x pipeline x context does not divide the ranks. data: size of
// the data axis in the deck; 0: what the other axes leave.
[[noreturn]] void RefuseAxes(const deck::Deck& deck, std::int64_t data, const Sizes& asked,
                             std::int64_t ranks, const Allowed& allowed) {
  std::vector<std::string> fits;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    const std::string remedy = OneAxis(axis, asked, ranks, allowed);
    if (!remedy.empty()) fits.push_back(remedy);
  }
  if (fits.empty()) fits = SeveralAxes(asked, ranks, allowed);
  const std::int64_t unit = Product(asked);
  const std::string given = data == 0 ? "" : "grid.data = 0 and ";
  std::string start;  // other sizes of the job, if the model can use them
  if (Fits(allowed, asked) && Times(unit, std::max<std::int64_t>(data, 1)) <= kMostRanks) {
    start = fmt::format("; or start the job with {}",
                        data == 0 ? NearestRanks(unit, ranks) : Count(Times(unit, data)));
  }
  throw InputError(fmt::format("{}: {} does not divide {}", deck.Where(Blamed(asked, ranks)),
                               fmt::join(Named(asked, asked, kAxes), " x "), Count(ranks)),
                   fmt::format("What fits: {}{}{}.", given, fmt::join(fits, ", or "), start));
}

// The grid's channels: one per group that moves GPU memory, and the time and failures of all of
// them.

// Queues that a GPU runs side by side (the maximum of CUDA_DEVICE_MAX_CONNECTIONS). Beyond that,
// queues share one, and a waiting receive may hold up what its sender waits for.
constexpr int kHardwareQueues = 32;

// NCCL's buffers per connection and thread block, from its sources: 4 MiB for protocol Simple, 4.7
// MiB for LL128, 0.5 MiB for LL. A ring has one receiving connection, a tree two more (up and
// down). Without a limit NCCL takes about 16 blocks on links within a node. None of this is
// measured, so memory is checked again once the communicators exist.
constexpr std::int64_t kConnectionBytes = (std::int64_t{4} << 20) + 4'915'200 + (512 << 10);
constexpr int kConnectionsOfCollective = 3, kBlocksOfLibrary = 16;

// groups: number of groups of more than one rank. NCCL adds a queue to each communicator's own.
void WarnOfQueues(const GridShape& shape, int groups, int pipeline_chunks) {
  constexpr int kOfComputation = 2;  // queues: of the computation and of its input
  constexpr int kOfEach = 2, kBothEnds = 2, kFlows = 2;
  const int chunk = kOfEach * kBothEnds * kFlows;
  const int messages = shape.pipeline > 1 ? chunk * pipeline_chunks : 0;
  const int queues = kOfComputation + kOfEach * groups + messages;
  if (queues <= kHardwareQueues || messages == 0) return;
  fmt::print(
      stderr,
      "warning: pipeline.chunks = {} takes {} queues of each GPU, which has {}: messages may "
      "hold each other up. Take at most {} chunks.\n",
      pipeline_chunks, queues, kHardwareQueues,
      std::max(1, (kHardwareQueues - queues + messages) / chunk));
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
  for (const auto& [name, group] : groups.others) {
    const bool of_data = name == Group::kShard || name == Group::kData;
    groups_[static_cast<std::size_t>(name)] =
        CutOut(of_data ? data_ : *world_, group, NameOf(name));
  }
}

const Communicator& ProcessGrid::RanksOf(Group group) const {
  if (group == Group::kWorld) return *world_;
  if (group != Group::kKeyValue) return groups_[static_cast<std::size_t>(group)];
  throw RunError("the grid has no key/value group: KeyValueGroup splits it for a model");
}

Collectives ProcessGrid::Over(Group group) const {
  const bool on_host = group == Group::kWorld || group == Group::kReplica;
  return {RanksOf(group), group, ledger_, ChannelOf(group), on_host ? device::Stream{} : stream_};
}

Communicator ProcessGrid::KeyValueGroup(std::int64_t kv_heads) const {
  return CutOut(Tensor(), KeyValueGroupOf(Tensor().Rank(), Tensor().Size(), kv_heads),
                NameOf(Group::kKeyValue));
}

GridShape ReadGrid(const Options& options, const deck::Deck& deck, int ranks,
                   const Allowed& given) {
  const Allowed allowed = given ? given : [](std::int64_t, std::int64_t) { return true; };
  const Sizes asked = {options.tensor, options.pipeline, options.context};
  const std::int64_t unit = Product(asked);
  if (!Divides(unit, ranks)) RefuseAxes(deck, options.data, asked, ranks, allowed);
  const std::int64_t left = ranks / unit;
  if (options.data != 0 && options.data != left) {
    const std::string all = Count(Times(unit, options.data));
    throw deck.Complain(
        "grid.data", fmt::format("the grid has {}, the job has {}", all, ranks),
        fmt::format("What fits: grid.data = {}, or 0 (what is left); or start the job with {}.",
                    left, all));
  }
  return {.pipeline = static_cast<int>(options.pipeline),
          .data = static_cast<int>(left),
          .context = static_cast<int>(options.context),
          .tensor = static_cast<int>(options.tensor)};
}

// The banner's map: host and coordinates of each rank.

std::vector<std::string> RankMap(const GridShape& shape, const Hosts& hosts) {
  // A longer map shows only its head, in which one sees how neighbours lie, and its tail.
  constexpr int kMostLines = 16, kHead = 8, kTail = 4;
  const int ranks = shape.Ranks();
  if (ranks == 1) return {};
  const auto digits = [](int most) { return fmt::to_string(most).size(); };
  const auto is_shown = [&](int rank) {
    return ranks <= kMostLines || rank < kHead || rank >= ranks - kTail;
  };
  std::size_t host_width = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (is_shown(rank)) host_width = std::max(host_width, hosts.Of(rank).size());
  }
  std::vector<std::string> lines;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!is_shown(rank)) {
      if (rank == kHead) lines.push_back(fmt::format("...  {} more", ranks - kHead - kTail));
      continue;
    }
    const GridShape at = Locate(rank, shape);
    std::string line = fmt::format("rank {:>{}}   {:<{}}   pipeline {:>{}}  data {:>{}}", rank,
                                   digits(ranks - 1), hosts.Of(rank), host_width, at.pipeline,
                                   digits(shape.pipeline - 1), at.data, digits(shape.data - 1));
    if (shape.context > 1) {
      line += fmt::format("  context {:>{}}", at.context, digits(shape.context - 1));
    }
    line += fmt::format("  tensor {:>{}}", at.tensor, digits(shape.tensor - 1));
    lines.push_back(line);
  }
  return lines;
}

std::unique_ptr<Channel> ProcessGrid::NewChannel(const Communicator& group,
                                                 ChannelSetup setup) const {
  if (group.IsPlanned()) return nullptr;
  setup.stream = stream_;
  setup.staged = staged_;
  std::unique_ptr<Channel> channel = MakeChannel(group, setup);
  if (channel == nullptr) return nullptr;
  Channel* const listed = channel.get();
  listed_.emplace_back(setup.group, listed);
  channel->AtEnd([this, listed] {
    std::erase_if(listed_, [listed](const auto& entry) { return entry.second == listed; });
  });
  return channel;
}

// All ranks make their channels in this order, so overlapping groups do not wait for each other.
std::vector<ChannelSetup> ProcessGrid::ChannelSetups(int pipeline_chunks) const {
  ChannelSetup pipeline = {.group = Group::kPipeline};
  for (int chunk = 0; chunk < pipeline_chunks; ++chunk) {
    // Tags as in parallel::Peer::tag: flow + 2 * chunk of the receiver.
    pipeline.to_next.push_back(2 * chunk);
    pipeline.to_previous.push_back(2 * chunk + 1);
  }
  pipeline.closed = pipeline_chunks > 1;
  std::vector<ChannelSetup> setups = {{.group = Group::kData},
                                      {.group = Group::kShard},
                                      {.group = Group::kContext, .shifts = true},  // ring attention
                                      {.group = Group::kTensor},
                                      pipeline,
                                      {.group = Group::kEmbedding}};
  std::erase_if(setups, [this](const auto& each) { return RanksOf(each.group).Size() == 1; });
  return setups;
}

void ProcessGrid::UseGpu(const device::Stream& stream, bool staged, int pipeline_chunks) {
  if (stream_.OnGpu()) throw RunError("a grid's channels made twice: a bug in Trireme");
  stream_ = stream;
  if (world_->IsPlanned()) return;  // planned groups use PlannedChannel
  staged_ = staged;
  const std::vector<ChannelSetup> setups = ChannelSetups(pipeline_chunks);
  if (!staged && stream.OnGpu()) {
    const int groups = static_cast<int>(setups.size());
    world_->Together([&] { RequireOrderedLaunches(groups, Pipeline().Size() > 1); });
    if (world_->IsRoot()) WarnOfQueues(shape_, groups, pipeline_chunks);
  }
  for (const ChannelSetup& setup : setups) {
    channels_.emplace_back(setup.group, NewChannel(RanksOf(setup.group), setup));
  }
}

std::int64_t ProcessGrid::CommunicatorBytes(int pipeline_chunks, std::int64_t kv_heads) const {
  std::int64_t blocks = 0;  // thread blocks times connections
  const auto add_collective = [&](const ChannelSetup& setup) {
    const int most = MostBlocksOfCollective(setup);
    blocks += kConnectionsOfCollective * (most > 0 ? most : kBlocksOfLibrary);
  };
  for (const ChannelSetup& setup : ChannelSetups(pipeline_chunks)) {
    add_collective(setup);
    const Communicator& group = RanksOf(setup.group);
    const int ends = setup.closed ? 2 : (group.Rank() > 0) + (group.Rank() < group.Size() - 1);
    const std::size_t tags = setup.to_next.size() + setup.to_previous.size();
    blocks += kMessageBlocks * ends * static_cast<int>(tags);
  }
  if (Tensor().Size() > kv_heads) add_collective({.group = Group::kKeyValue});
  return blocks * kConnectionBytes;
}

std::unique_ptr<Channel> ProcessGrid::ChannelOver(const Communicator& group, Group name) const {
  return NewChannel(group, {.group = name});
}

void ProcessGrid::Decorate(Group group, const Decorator& make) {
  const Communicator& ranks = RanksOf(group);
  if (ranks.Size() == 1) return;
  const Collectives plain(ranks, group, unrecorded_, ChannelOf(group), stream_);
  decorations_.emplace_back(group, make(plain));
}

Channel* ProcessGrid::ChannelOf(Group group) const {
  for (auto entry = decorations_.rbegin(); entry != decorations_.rend(); ++entry) {
    if (entry->first == group) return entry->second.get();
  }
  for (const auto& [name, channel] : channels_) {
    if (name == group) return channel.get();
  }
  return nullptr;
}

double ProcessGrid::TakeExposed() const {
  double sum = 0;
  for (const auto& [group, channel] : listed_) {
    const double seconds = channel->TakeExposed();
    ledger_.AddWaited(group, seconds);
    sum += seconds;
  }
  return sum;
}

void ProcessGrid::CheckHealth() const {
  try {
    for (const auto& [group, channel] : listed_) channel->CheckHealth();
  } catch (const Error&) {
    GiveUp();  // the other groups may hang behind the failed one
    throw;
  }
}

// Starts all ends before it waits: one channel's end may need another's on the same card.
void ProcessGrid::GiveUp() const noexcept {
  std::vector<std::shared_future<void>> ends;
  for (const auto& [group, channel] : listed_) {
    for (const auto& end : channel->GiveUp()) ends.push_back(end);
  }
  AwaitEnds(ends);
}

void ProcessGrid::Await(const device::Event& event) const {
  constexpr double kBetweenChecks = 1e-3;  // seconds
  const Recorded recorded(world_->Recorder(), Call::kDevice);
  double checked = Seconds();
  while (!event.Happened()) {
    if (const double now = Seconds(); now - checked > kBetweenChecks) {
      CheckHealth();
      checked = now;
    }
    sched_yield();
  }
}

void ProcessGrid::TraceInto(device::Recorder* recorder) const {
  ledger_.TraceInto(recorder);
  for (const auto& [group, channel] : listed_) channel->TraceInto(recorder);
}

bool ProcessGrid::Recordable() const {
  if (listed_.size() > 1 && !GraphsHoldSeveralGroups()) return false;
  const auto recordable = [](const auto& entry) { return entry.second->Recordable(); };
  return std::ranges::all_of(listed_, recordable) && std::ranges::all_of(decorations_, recordable);
}

}  // namespace trireme::comm
