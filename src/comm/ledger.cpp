// Ledger: sums of calls, bytes and seconds.
#include "trireme/comm/ledger.hpp"

#include <numeric>

#include "staged_channel.hpp"

namespace trireme::comm {

const char* NameOf(Group group) {
  switch (group) {
    case Group::kWorld:
      return "world";
    case Group::kData:
      return "data";
    case Group::kShard:
      return "shard";
    case Group::kContext:
      return "context";
    case Group::kTensor:
      return "tensor";
    case Group::kPipeline:
      return "pipeline";
    case Group::kEmbedding:
      return "embedding";
    case Group::kKeyValue:
      return "key/value";
    case Group::kReplica:
      return "replica";
  }
  return "?";
}

const char* NameOf(Transfer transfer) {
  switch (transfer) {
    case Transfer::kAllReduce:
      return "all-reduce";
    case Transfer::kReduceScatter:
      return "reduce-scatter";
    case Transfer::kAllGather:
      return "all-gather";
    case Transfer::kAllToAll:
      return "all-to-all";
    case Transfer::kBroadcast:
      return "broadcast";
    case Transfer::kSend:
      return "send";
    case Transfer::kReceive:
      return "receive";
  }
  return "?";
}

double Moved(Transfer transfer, int group_size, std::int64_t payload) {
  const auto bytes = static_cast<double>(payload);
  const double others = static_cast<double>(group_size - 1) / group_size * bytes;
  switch (transfer) {
    case Transfer::kAllReduce:
      return 2 * others;
    case Transfer::kReduceScatter:
    case Transfer::kAllGather:
    case Transfer::kAllToAll:
    case Transfer::kBroadcast:
      return others;
    case Transfer::kSend:
      return bytes;
    case Transfer::kReceive:
      return 0;
  }
  return 0;
}

GroupSeconds ExposedByGroup(GroupSeconds waited, double bubble, double exposed) {
  constexpr auto kWorld = static_cast<std::size_t>(Group::kWorld);
  constexpr auto kPipeline = static_cast<std::size_t>(Group::kPipeline);
  waited[kPipeline] = std::max(0.0, waited[kPipeline] - bubble);
  waited[kWorld] = 0;
  const double sum = std::accumulate(waited.begin(), waited.end(), 0.0);
  const double shrink = sum > exposed ? exposed / sum : 1;  // by rounding of clocks
  for (double& seconds : waited) seconds *= shrink;
  waited[kWorld] = std::max(0.0, exposed - sum);
  return waited;
}

void Ledger::Record(Group group, Transfer transfer, int group_size, std::int64_t payload,
                    double waited, double hidden) {
  Traffic& traffic = traffic_[static_cast<std::size_t>(group)][static_cast<std::size_t>(transfer)];
  ++traffic.calls;
  traffic.payload += payload;
  traffic.moved += Moved(transfer, group_size, payload);
  AddSeconds(group, transfer, waited, hidden);
}

void Ledger::AddSeconds(Group group, Transfer transfer, double waited, double hidden) {
  Traffic& traffic = traffic_[static_cast<std::size_t>(group)][static_cast<std::size_t>(transfer)];
  traffic.seconds_waited += waited;
  traffic.seconds_hidden += hidden;
}

void Ledger::Clear() {
  traffic_ = {};
  waited_ = {};
}

void Ledger::AddWaited(Group group, double seconds) {
  waited_[static_cast<std::size_t>(group)] += seconds;
}

const Traffic& Ledger::At(Group group, Transfer transfer) const {
  return traffic_[static_cast<std::size_t>(group)][static_cast<std::size_t>(transfer)];
}

double Ledger::SecondsWaited(Group group) const {
  double seconds = waited_[static_cast<std::size_t>(group)];
  for (const Traffic& traffic : traffic_[static_cast<std::size_t>(group)]) {
    seconds += traffic.seconds_waited;
  }
  return seconds;
}

namespace {
void Accumulate(Traffic& sum, const Traffic& other, int sign) {
  sum.calls += sign * other.calls;
  sum.payload += sign * other.payload;
  sum.moved += sign * other.moved;
  sum.seconds_waited += sign * other.seconds_waited;
  sum.seconds_hidden += sign * other.seconds_hidden;
}
}  // namespace

void Ledger::Add(const Ledger& other) {
  for (std::size_t group = 0; group < traffic_.size(); ++group) {
    for (std::size_t transfer = 0; transfer < traffic_[group].size(); ++transfer) {
      Accumulate(traffic_[group][transfer], other.traffic_[group][transfer], 1);
    }
    waited_[group] += other.waited_[group];
  }
}

void Ledger::Subtract(const Ledger& other) {
  for (std::size_t group = 0; group < traffic_.size(); ++group) {
    for (std::size_t transfer = 0; transfer < traffic_[group].size(); ++transfer) {
      Accumulate(traffic_[group][transfer], other.traffic_[group][transfer], -1);
    }
    waited_[group] -= other.waited_[group];
  }
}

// Slices of waits for transfers.

device::Slice WaitFor(const device::Slice& transfer) {
  device::Slice wait = transfer;
  const bool stage = static_cast<Group>(wait.group) == Group::kPipeline &&
                     static_cast<Transfer>(wait.transfer) == Transfer::kReceive;
  wait.name = stage ? device::SliceName::kBubble : device::SliceName::kWait;
  wait.category = device::SliceCategory::kWait;
  return wait;
}

void TraceWait(device::Recorder& recorder, const device::Slice& transfer, double waited) {
  constexpr double kShortest = 1e-6;  // seconds; a shorter wait is the call itself
  if (waited < kShortest) return;
  device::Slice wait = WaitFor(transfer);
  wait.queue = device::SliceQueue::kHost;
  wait.begin = wait.end - waited;
  recorder.Add(wait);
}

}  // namespace trireme::comm
