// The channels of a process grid: one per group that moves memory of GPUs, and the time and the
// failures of all of them together.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {

namespace {

// A GPU runs so many queues side by side (the most that CUDA_DEVICE_MAX_CONNECTIONS can be); of
// more, some share one, and a receive that waits may hold up what its sender waits for.
constexpr int kHardwareQueues = 32;

// NCCL's buffers of one connection in one thread block, as its sources have them: 4 MiB for its
// protocol Simple, 4.7 MiB for LL128, 0.5 MiB for LL. A ring has one connection that receives; a
// tree has two more, up and down. What NCCL takes as it likes, on links within a node, is about 16
// blocks. Not measured; hence memory is checked again when the communicators are there.
constexpr std::int64_t kConnectionBytes = (std::int64_t{4} << 20) + 4'915'200 + (512 << 10);
constexpr int kConnectionsOfCollective = 3, kBlocksOfLibrary = 16;

// groups: of more than one rank. NCCL lets a queue of its own wait for each of a communicator's.
void WarnOfQueues(const GridShape& shape, int groups, int pipeline_chunks) {
  constexpr int kOfComputation = 2;  // and of input
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

// A channel on the grid's list for as long as it lives.
class ProcessGrid::ListedChannel final : public Channel {
 public:
  ListedChannel(std::unique_ptr<Channel> channel, Group group, Listed& list)
      : channel_(std::move(channel)), list_(list) {
    list_.emplace_back(group, this);
  }
  ~ListedChannel() override {
    std::erase_if(list_, [this](const auto& entry) { return entry.second == this; });
  }
  ListedChannel(const ListedChannel&) = delete;
  ListedChannel& operator=(const ListedChannel&) = delete;

  int Start(const Operation& operation) override { return channel_->Start(operation); }
  bool Test(int ticket) override { return channel_->Test(ticket); }
  void Wait(int ticket) override { channel_->Wait(ticket); }
  double TakeExposed() override { return channel_->TakeExposed(); }
  void CheckHealth() override { channel_->CheckHealth(); }
  std::vector<std::shared_future<void>> GiveUp() noexcept override { return channel_->GiveUp(); }
  bool Recordable() const override { return channel_->Recordable(); }
  void TraceInto(device::Recorder* recorder) override { channel_->TraceInto(recorder); }
  bool Traces() const override { return channel_->Traces(); }

 private:
  std::unique_ptr<Channel> channel_;
  Listed& list_;
};

std::unique_ptr<Channel> ProcessGrid::NewChannel(const Communicator& group,
                                                 ChannelSetup setup) const {
  if (group.IsPlanned()) return nullptr;
  setup.stream = stream_;
  setup.staged = staged_;
  const Group name = setup.group;
  std::unique_ptr<Channel> channel = MakeChannel(group, setup);
  if (channel == nullptr) return nullptr;
  return std::make_unique<ListedChannel>(std::move(channel), name, listed_);
}

// Every rank in this order: where groups overlap, nobody waits for a rank that waits for him.
std::vector<ProcessGrid::GroupSetup> ProcessGrid::GroupSetups(int pipeline_chunks) const {
  ChannelSetup pipeline = {.group = Group::kPipeline};
  for (int chunk = 0; chunk < pipeline_chunks; ++chunk) {
    // Numbers of parallel/pipeline_program.hpp: flow + 2 * chunk of the receiver.
    pipeline.to_next.push_back(2 * chunk);
    pipeline.to_previous.push_back(2 * chunk + 1);
  }
  pipeline.closed = pipeline_chunks > 1;
  std::vector<GroupSetup> setups = {{&same_shard_, {.group = Group::kData}},
                                    {&shard_, {.group = Group::kShard}},
                                    // ring attention's
                                    {&context_, {.group = Group::kContext, .shifts = true}},
                                    {&tensor_, {.group = Group::kTensor}},
                                    {&pipeline_, pipeline},
                                    {&embedding_, {.group = Group::kEmbedding}}};
  std::erase_if(setups, [](const GroupSetup& each) { return each.group->Size() == 1; });
  return setups;
}

void ProcessGrid::UseGpu(const device::Stream& stream, bool staged, int pipeline_chunks) {
  if (stream_.OnGpu()) throw RunError("a grid's channels made twice: a bug in Trireme");
  stream_ = stream;
  if (world_->IsPlanned()) return;  // Collectives of a planned group have a channel
  staged_ = staged;
  const std::vector<GroupSetup> setups = GroupSetups(pipeline_chunks);
  if (!staged && stream.OnGpu()) {
    const int groups = static_cast<int>(setups.size());
    world_->Together([&] { RequireOrderedLaunches(groups, pipeline_.Size() > 1); });
    if (world_->IsRoot()) WarnOfQueues(shape_, groups, pipeline_chunks);
  }
  for (const auto& [group, setup] : setups) {
    channels_.emplace_back(setup.group, NewChannel(*group, setup));
  }
}

std::int64_t ProcessGrid::CommunicatorBytes(int pipeline_chunks, std::int64_t kv_heads) const {
  std::int64_t blocks = 0;  // each with its connections
  const auto add_collective = [&](const ChannelSetup& setup) {
    const int most = MostBlocksOfCollective(setup);
    blocks += kConnectionsOfCollective * (most > 0 ? most : kBlocksOfLibrary);
  };
  for (const auto& [group, setup] : GroupSetups(pipeline_chunks)) {
    add_collective(setup);
    const int ends = setup.closed ? 2 : (group->Rank() > 0) + (group->Rank() < group->Size() - 1);
    const std::size_t tags = setup.to_next.size() + setup.to_previous.size();
    blocks += kMessageBlocks * ends * static_cast<int>(tags);
  }
  if (tensor_.Size() > kv_heads) add_collective({.group = Group::kKeyValue});
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
    GiveUp();  // of the other groups too: what waits for the failed one holds them up
    throw;
  }
}

// All at once: the end of one may wait for what another still does on the card.
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
