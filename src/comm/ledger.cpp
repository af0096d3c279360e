// Ledger: sums of calls, bytes and seconds.
#include "trireme/comm/ledger.hpp"

#include <numeric>

namespace trireme::comm {

const char* NameOf(Group group) {
  constexpr std::array<const char*, kGroups> kNames = {"world",     "data",      "shard",
                                                       "context",   "tensor",    "pipeline",
                                                       "embedding", "key/value", "replica"};
  return kNames.at(static_cast<std::size_t>(group));
}

const char* NameOf(Transfer transfer) {
  constexpr std::array<const char*, kTransfers> kNames = {
      "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "send", "receive"};
  return kNames.at(static_cast<std::size_t>(transfer));
}

double Moved(Transfer transfer, int group_size, std::int64_t payload) {
  const auto bytes = static_cast<double>(payload);
  if (transfer == Transfer::kSend) return bytes;
  if (transfer == Transfer::kReceive) return 0;
  const double others = static_cast<double>(group_size - 1) / group_size * bytes;
  return transfer == Transfer::kAllReduce ? 2 * others : others;
}

GroupSeconds ExposedByGroup(GroupSeconds waited, double bubble, double exposed) {
  constexpr auto kWorld = static_cast<std::size_t>(Group::kWorld);
  constexpr auto kPipeline = static_cast<std::size_t>(Group::kPipeline);
  waited[kPipeline] = std::max(0.0, waited[kPipeline] - bubble);
  waited[kWorld] = 0;
  const double sum = std::accumulate(waited.begin(), waited.end(), 0.0);
  const double shrink = sum > exposed ? exposed / sum : 1;  // rounded clocks may exceed it
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

void Ledger::Add(const Ledger& other, int sign) {
  for (std::size_t group = 0; group < traffic_.size(); ++group) {
    for (std::size_t transfer = 0; transfer < traffic_[group].size(); ++transfer) {
      Traffic& sum = traffic_[group][transfer];
      const Traffic& more = other.traffic_[group][transfer];
      sum.calls += sign * more.calls;
      sum.payload += sign * more.payload;
      sum.moved += sign * more.moved;
      sum.seconds_waited += sign * more.seconds_waited;
      sum.seconds_hidden += sign * more.seconds_hidden;
    }
    waited_[group] += sign * other.waited_[group];
  }
}

}  // namespace trireme::comm
