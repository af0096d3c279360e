// Matches: by sender, receiver and tag; by group.
#include "matches.hpp"

#include <map>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/comm/ledger.hpp"

namespace trireme::predict {

namespace {

using comm::Group, comm::Transfer;

bool SpansStages(Group group) {
  return group == Group::kWorld || group == Group::kReplica || group == Group::kEmbedding;
}

template <typename Item>
std::vector<std::vector<Item>> ForEach(const std::vector<Tape>& tapes) {
  std::vector<std::vector<Item>> items;
  for (const Tape& tape : tapes) items.emplace_back(tape.transfers.size());
  return items;
}

template <typename Item>
Item& At(std::vector<std::vector<Item>>& items, const Place& place) {
  return items[static_cast<std::size_t>(place.stage)][static_cast<std::size_t>(place.transfer)];
}

}  // namespace

bool IsReceive(const device::LoggedTransfer& what) {
  return static_cast<Transfer>(what.transfer) == Transfer::kReceive;
}

Places MatchMessages(const std::vector<Tape>& tapes) {
  using Key = std::tuple<int, int, int>;  // from, to, tag
  std::map<Key, std::vector<Place>> sent, received;
  for (int i = 0; i < static_cast<int>(tapes.size()); ++i) {
    const std::vector<TapeTransfer>& transfers = tapes[static_cast<std::size_t>(i)].transfers;
    for (int j = 0; j < static_cast<int>(transfers.size()); ++j) {
      const device::LoggedTransfer& what = transfers[static_cast<std::size_t>(j)].what;
      if (static_cast<Group>(what.group) != Group::kPipeline || what.peer < 0) continue;
      if (IsReceive(what)) {
        received[{what.peer, i, what.tag}].push_back({i, j});
      } else {
        sent[{i, what.peer, what.tag}].push_back({i, j});
      }
    }
  }
  Places partners = ForEach<Place>(tapes);
  for (const auto& [key, sends] : sent) {
    const std::vector<Place>& receives = received[key];
    if (sends.size() != receives.size()) {
      throw RunError("a simulated message that nobody takes", "This is a bug in Trireme.");
    }
    for (std::size_t k = 0; k < sends.size(); ++k) {
      At(partners, sends[k]) = receives[k];
      At(partners, receives[k]) = sends[k];
    }
  }
  return partners;
}

JointPlaces MatchJoint(const std::vector<Tape>& tapes) {
  std::map<int, std::vector<std::vector<Place>>> found;  // by group, in order
  for (int i = 0; tapes.size() > 1 && i < static_cast<int>(tapes.size()); ++i) {
    const std::vector<TapeTransfer>& transfers = tapes[static_cast<std::size_t>(i)].transfers;
    std::map<int, std::size_t> count;
    for (int j = 0; j < static_cast<int>(transfers.size()); ++j) {
      const int group = transfers[static_cast<std::size_t>(j)].what.group;
      if (!SpansStages(static_cast<Group>(group))) continue;
      const std::size_t at = count[group]++;
      std::vector<std::vector<Place>>& list = found[group];
      if (list.size() <= at) list.resize(at + 1);
      list[at].push_back({i, j});
    }
  }
  JointPlaces joint = ForEach<std::vector<Place>>(tapes);
  for (const auto& [group, list] : found) {
    for (const std::vector<Place>& places : list) {
      for (const Place& place : places) At(joint, place) = places;
    }
  }
  return joint;
}

}  // namespace trireme::predict
