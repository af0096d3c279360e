// FlightRecorder: the shared memory of a node, and the writing side.
#include "trireme/comm/flight_recorder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <ctime>

#include "flight_memory.hpp"
#include "process_state.hpp"
#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/posix_file.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;

// Bits of a group's id that count; those above are the first rank's number in the world.
constexpr int kCounterBits = 32;

std::int64_t BytesFor(int ranks) {
  return static_cast<std::int64_t>(sizeof(NodeWords)) +
         ranks * static_cast<std::int64_t>(sizeof(RankSlot));
}

template <typename T>
T& At(std::array<T, kRing>& ring, std::int64_t number) {
  return ring[static_cast<std::size_t>(number % kRing)];
}

}  // namespace

std::int64_t MonotonicNanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

const char* NameOf(Call call) {
  constexpr std::array<const char*, kCalls> kNames = {
      "all-reduce", "reduce-scatter", "all-gather",    "all-to-all", "broadcast",
      "send",       "receive",        "shift",         "barrier",    "agreement",
      "split",      "exchange",       "device's work", "connection"};
  return kNames.at(static_cast<std::size_t>(call));
}

const char* NameOf(Phase phase) {
  constexpr std::array<const char*, 5> kNames = {"set-up", "step", "validation", "checkpoint",
                                                 "end"};
  return kNames.at(static_cast<std::size_t>(phase));
}

std::string Describe(Phase phase, std::int64_t step) {
  switch (phase) {
    case Phase::kSetUp:
      return "in the set-up";
    case Phase::kStep:
      return fmt::format("in step {}", step);
    case Phase::kValidation:
      return fmt::format("in the validation after step {}", step);
    case Phase::kCheckpoint:
      return fmt::format("in the checkpoint of step {}", step);
    case Phase::kEnd:
      break;
  }
  return "at the end of the job";
}

FlightRecorder::FlightRecorder(int world_rank, const Communicator& node)
    : memory_(std::make_unique<FlightMemory>(node, BytesFor(node.Size()))) {
  if (const int error = memory_->shared.Error(); error != 0) {
    throw RunError(fmt::format("{} ranks of a node cannot share {}: {}", node.Size(),
                               Mebibytes(BytesFor(node.Size())), ErrorText(error)),
                   RoomForSharedMemory());
  }
  memory_->ranks = node.Size();
  memory_->rank = node.Rank();
  std::byte* const base = memory_->shared.Data();
  memory_->node = reinterpret_cast<NodeWords*>(base);
  memory_->slots = reinterpret_cast<RankSlot*>(base + sizeof(NodeWords));
  // Zeroed by the system.
  mine_ = memory_->slots + memory_->rank;
  const int pid = ::getpid();
  mine_->world_rank.store(world_rank, kRelaxed);
  mine_->pid.store(pid, kRelaxed);
  mine_->started.store(LookAt(pid).started, kRelaxed);
  node.Barrier();
}

FlightRecorder::~FlightRecorder() = default;

std::uint64_t FlightRecorder::NewGroupId() {
  const auto rank = static_cast<std::uint64_t>(mine_->world_rank.load(kRelaxed));
  return rank << kCounterBits | ++groups_made_;
}

int FlightRecorder::AddGroup(const std::string& name, std::uint64_t id, int rank, int size) {
  for (int place = 0; place < kMostGroups; ++place) {
    GroupEntry& group = mine_->groups[static_cast<std::size_t>(place)];
    if (group.id.load(kRelaxed) != 0) continue;
    group.entered.store(0, kRelaxed);
    group.rank.store(rank, kRelaxed);
    group.size.store(size, kRelaxed);
    RenameGroup(place, name);
    group.id.store(id, kRelease);
    return place;
  }
  return -1;
}

void FlightRecorder::RenameGroup(int group, const std::string& name) {
  if (group < 0) return;
  auto& to = mine_->groups[static_cast<std::size_t>(group)].name;
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i].store(i < name.size() && i + 1 < to.size() ? name[i] : '\0', kRelaxed);
  }
}

void FlightRecorder::RemoveGroup(int group) {
  if (group < 0) return;
  mine_->groups[static_cast<std::size_t>(group)].id.store(0, kRelease);
  for (int i = 0; i < flows_; ++i) {
    FlowEntry& flow = mine_->flow[static_cast<std::size_t>(i)];
    if (flow.group.load(kRelaxed) == group) flow.group.store(-1, kRelease);
  }
}

FlightRecorder::Flight FlightRecorder::Record(const Flight& flight) {
  Flight recorded = flight;
  recorded.number = ++calls_;
  CallEntry& entry = At(mine_->ring, recorded.number);
  entry.number.store(0, kRelaxed);
  std::atomic_thread_fence(kRelease);
  entry.sequence.store(flight.sequence, kRelaxed);
  entry.bytes.store(flight.bytes, kRelaxed);
  entry.step.store(step_, kRelaxed);
  entry.nanoseconds.store(MonotonicNanoseconds(), kRelaxed);
  entry.group.store(flight.group, kRelaxed);
  entry.peer.store(flight.peer, kRelaxed);
  entry.tag.store(flight.tag, kRelaxed);
  entry.call.store(flight.call, kRelaxed);
  entry.state.store(CallState::kEntered, kRelaxed);
  entry.phase.store(mine_->phase.load(kRelaxed), kRelaxed);
  entry.number.store(recorded.number, kRelease);
  mine_->calls.store(calls_, kRelease);
  mine_->progress.store(++progress_, kRelease);
  return recorded;
}

FlightRecorder::Flight FlightRecorder::Enter(int group, Call call, std::int64_t bytes) {
  Flight flight = {.bytes = bytes, .group = group, .call = call};
  if (group < 0) return Record(flight);
  Word<std::int64_t>& entered = mine_->groups[static_cast<std::size_t>(group)].entered;
  flight.sequence = entered.load(kRelaxed) + 1;
  flight = Record(flight);
  entered.store(flight.sequence, kRelease);
  return flight;
}

FlightRecorder::Flight FlightRecorder::EnterMessage(int group, Call call, std::int64_t bytes,
                                                    int peer, int tag) {
  Flight flight = {.bytes = bytes, .group = group, .peer = peer, .tag = tag, .call = call};
  FlowEntry* found = nullptr;
  FlowEntry* unused = nullptr;
  for (int i = 0; i < flows_ && found == nullptr; ++i) {
    FlowEntry& flow = mine_->flow[static_cast<std::size_t>(i)];
    const int of = flow.group.load(kRelaxed);
    if (of < 0) unused = &flow;
    const bool same = of == group && flow.peer.load(kRelaxed) == peer;
    if (same && flow.tag.load(kRelaxed) == tag) found = &flow;
  }
  if (found == nullptr && (unused != nullptr || flows_ < kMostFlows)) {
    found = unused != nullptr ? unused : &mine_->flow[static_cast<std::size_t>(flows_++)];
    found->sent.store(0, kRelaxed);
    found->received.store(0, kRelaxed);
    found->peer.store(peer, kRelaxed);
    found->tag.store(tag, kRelaxed);
    found->group.store(group, kRelease);
    mine_->flows.store(flows_, kRelease);
  }
  if (found == nullptr) return Record(flight);
  Word<std::int64_t>& count = call == Call::kSend ? found->sent : found->received;
  flight.sequence = count.load(kRelaxed) + 1;
  flight = Record(flight);
  count.store(flight.sequence, kRelease);
  return flight;
}

std::int64_t FlightRecorder::Await(Flight& flight) {
  const std::int64_t before = mine_->waiting.load(kRelaxed);
  // Overwritten meanwhile: recorded again, as the same call.
  if (At(mine_->ring, flight.number).number.load(kRelaxed) != flight.number) {
    flight = Record(flight);
  }
  mine_->waiting.store(flight.number, kRelease);
  return before;
}

void FlightRecorder::Leave(const Flight& flight, std::int64_t before) {
  CallEntry& entry = At(mine_->ring, flight.number);
  if (entry.number.load(kRelaxed) == flight.number) {
    entry.state.store(CallState::kLeft, kRelaxed);
  }
  mine_->waiting.store(before, kRelease);
  mine_->progress.store(++progress_, kRelease);
}

void FlightRecorder::Progress(Phase phase, std::int64_t step) {
  step_ = step;
  mine_->step.store(step, kRelaxed);
  mine_->phase.store(phase, kRelaxed);
  mine_->progress.store(++progress_, kRelease);
}

Recorded::Recorded(const Communicator& group, Call call, std::int64_t bytes)
    : recorder_(group.Recorder()) {
  if (recorder_ == nullptr) return;
  flight_ = recorder_->Enter(group.RecordedAs(), call, bytes);
  before_ = recorder_->Await(flight_);
}

Recorded::Recorded(FlightRecorder* recorder, Call call) : recorder_(recorder) {
  if (recorder_ == nullptr) return;
  flight_ = recorder_->Enter(-1, call, 0);
  before_ = recorder_->Await(flight_);
}

}  // namespace trireme::comm
