// Judge: each waiting rank points to those it waits for. A rank holds others up if it is stopped or
// gone, or if it is waited for and in no call.
#include "flight_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "trireme/comm/hosts.hpp"

namespace trireme::comm {

namespace {

// Says that rank `from` waits for rank `to`.
struct Edge {
  const RankTable* from = nullptr;
  const RankTable* to = nullptr;
  CallRow call;  // what `from` waits in and `to` has not entered
};

const GroupRow* Find(const RankTable& table, std::uint64_t id) {
  const auto found =
      std::ranges::find_if(table.groups, [&](const GroupRow& group) { return group.id == id; });
  return id == 0 || found == table.groups.end() ? nullptr : &*found;
}

bool Disabled(const RankTable& table) { return IsGone(table.process) || IsStopped(table.process); }

std::string NameOf(const RankTable& table) {
  return fmt::format("rank {} on {}", table.rank, table.host);
}

class Graph {
 public:
  explicit Graph(const std::vector<RankTable>& ranks) : ranks_(ranks) {
    for (const RankTable& rank : ranks_) {
      for (const GroupRow& group : rank.groups) members_[group.id].push_back(&rank);
    }
    for (const RankTable& rank : ranks_) {
      if (rank.waiting && !Disabled(rank)) AddEdges(rank, *rank.waiting);
    }
  }

  const std::vector<Edge>& Edges() const { return edges_; }
  bool IsWaitedFor(const RankTable& rank) const { return Missing(rank) != nullptr; }
  // The edge from the rank that has waited longest for `rank`; null: no rank waits for it.
  const Edge* Missing(const RankTable& rank) const {
    const Edge* longest = nullptr;
    for (const Edge& edge : edges_) {
      if (edge.to != &rank) continue;
      if (longest == nullptr || edge.call.seconds > longest->call.seconds) longest = &edge;
    }
    return longest;
  }
  std::vector<int> WaitingFor(const RankTable& rank) const {
    std::set<int> waiting;
    for (const Edge& edge : edges_) {
      if (edge.to == &rank) waiting.insert(edge.from->rank);
    }
    return {waiting.begin(), waiting.end()};
  }

 private:
  void AddEdges(const RankTable& rank, const CallRow& call) {
    if (call.call == Call::kDevice) return AddDevice(rank, call);
    const GroupRow* const own = Find(rank, call.group);
    if (own == nullptr) return;
    if (call.peer >= 0) return AddMessage(rank, *own, call);
    for (const RankTable* member : members_[call.group]) {
      if (Find(*member, call.group)->entered < call.sequence)
        edges_.push_back({&rank, member, call});
    }
  }

  // A device's work may wait for any transfer that was started, so all groups are compared.
  void AddDevice(const RankTable& rank, const CallRow& call) {
    for (const GroupRow& own : rank.groups) {
      for (const RankTable* member : members_[own.id]) {
        const std::int64_t entered = Find(*member, own.id)->entered;
        if (entered >= own.entered) continue;
        Edge edge = {&rank, member, call};
        edge.call.group = own.id;
        edge.call.name = own.name;
        edge.call.sequence = entered + 1;
        for (const CallRow& recent : rank.calls) {
          const bool same = recent.group == own.id && recent.peer < 0;
          if (!same || recent.sequence != entered + 1) continue;
          edge.call.call = recent.call;
          edge.call.bytes = recent.bytes;
        }
        edges_.push_back(edge);
      }
    }
  }

  void AddMessage(const RankTable& rank, const GroupRow& own, const CallRow& call) {
    for (const RankTable* member : members_[call.group]) {
      if (Find(*member, call.group)->rank != call.peer) continue;
      std::int64_t matched = 0;
      for (const FlowRow& flow : member->flows) {
        const bool same = flow.group == call.group && flow.peer == own.rank && flow.tag == call.tag;
        if (same) matched = call.call == Call::kReceive ? flow.sent : flow.received;
      }
      // A call without a number cannot be told from earlier ones, so it counts as unmatched.
      if (matched < call.sequence || call.sequence == 0) edges_.push_back({&rank, member, call});
    }
  }

  const std::vector<RankTable>& ranks_;
  std::map<std::uint64_t, std::vector<const RankTable*>> members_;
  std::vector<Edge> edges_;
};

// What a rank has not done, as seen by the ranks that wait for it.
std::string Undone(const RankTable& rank, const Graph& graph) {
  if (const Edge* const missing = graph.Missing(rank)) {
    const CallRow& call = missing->call;
    const std::string where = Describe(call.phase, call.step);
    if (call.peer < 0) return fmt::format("has not entered {} {}", DescribeCall(call), where);
    return fmt::format("has not answered {} of rank {} {}", DescribeCall(call), missing->from->rank,
                       where);
  }
  if (rank.waiting) {
    return fmt::format("has entered {} {} and not left it", DescribeCall(*rank.waiting),
                       Describe(rank.waiting->phase, rank.waiting->step));
  }
  if (!rank.calls.empty()) {
    return fmt::format("is between transfers {}, the last one {}", Describe(rank.phase, rank.step),
                       DescribeCall(rank.calls.back()));
  }
  return fmt::format("has entered no transfer {}", Describe(rank.phase, rank.step));
}

Culprit MakeCulprit(const RankTable& rank, const Graph& graph) {
  std::string why = DescribeProcess(rank.process);
  if (!Disabled(rank) && !rank.waiting) {
    why += fmt::format(", in no transfer for {:.1f} s", rank.idle);
  }
  return {.rank = rank.rank,
          .host = rank.host,
          .text = fmt::format("{} {}: it {}", NameOf(rank), Undone(rank, graph), why),
          .waiting = graph.WaitingFor(rank)};
}

// Ranks in no call that others wait for; if there are none, those that have been idle for long.
std::vector<const RankTable*> Idle(const std::vector<RankTable>& ranks, const Graph& graph) {
  std::vector<const RankTable*> waited_for, others;
  double longest = 0;
  for (const RankTable& rank : ranks) {
    if (Disabled(rank) || rank.waiting) continue;
    (graph.IsWaitedFor(rank) ? waited_for : others).push_back(&rank);
    longest = std::max(longest, rank.idle);
  }
  if (!waited_for.empty()) return waited_for;
  std::erase_if(others, [&](const RankTable* rank) { return rank->idle < longest / 2; });
  return others;
}

// Lines on ranks that are in different calls at the same position of a group's sequence.
std::string Mismatches(const std::vector<RankTable>& ranks) {
  std::map<std::pair<std::uint64_t, std::int64_t>, const RankTable*> first;
  std::string text;
  for (const RankTable& rank : ranks) {
    if (!rank.waiting || rank.waiting->group == 0 || rank.waiting->peer >= 0) continue;
    const auto key = std::pair(rank.waiting->group, rank.waiting->sequence);
    const auto [found, is_new] = first.emplace(key, &rank);
    if (is_new || found->second->waiting->call == rank.waiting->call) continue;
    text += fmt::format("\n  {} is in {}, but {} in {}: the ranks have diverged", NameOf(rank),
                        DescribeCall(*rank.waiting), NameOf(*found->second),
                        DescribeCall(*found->second->waiting));
  }
  return text;
}

// End of a verdict if every rank has entered the transfer that does not end.
std::string NobodyIsMissing(const std::vector<RankTable>& ranks) {
  std::set<std::string> hosts;
  for (const RankTable& rank : ranks) {
    if (rank.waiting) hosts.insert(rank.host);
  }
  std::string between;
  if (hosts.size() == 2)
    between = fmt::format(" between {} and {}", *hosts.begin(), *hosts.rbegin());
  if (hosts.size() > 2) between = fmt::format(" between {} hosts", hosts.size());
  return fmt::format("\n  Nobody is missing: the network{}, MPI or a device holds the transfer up.",
                     between);
}

// No rank stands out because all wait.
std::string DescribeAllWaiting(const std::vector<RankTable>& ranks, const Graph& graph) {
  std::string text;
  if (graph.Edges().empty()) {
    std::map<std::string, std::vector<int>> calls;
    for (const RankTable& rank : ranks) {
      if (rank.waiting) calls[DescribeCall(*rank.waiting)].push_back(rank.rank);
    }
    for (const auto& [call, waiting] : calls) {
      text += fmt::format("\n  {} {} entered {}, which does not end", ListRanks(waiting),
                          waiting.size() == 1 ? "has" : "have", call);
    }
    return text + NobodyIsMissing(ranks);
  }
  const RankTable* at = graph.Edges().front().from;
  std::set<const RankTable*> seen;
  while (seen.insert(at).second) {
    const auto next =
        std::ranges::find_if(graph.Edges(), [&](const Edge& edge) { return edge.from == at; });
    if (next == graph.Edges().end()) {
      return text +
             fmt::format("\n  {} has entered {}, which does not end", NameOf(*at),
                         at->waiting ? DescribeCall(*at->waiting) : "a call") +
             NobodyIsMissing(ranks);
    }
    text += fmt::format("\n  {} waits in {} for rank {}", NameOf(*at), DescribeCall(next->call),
                        next->to->rank);
    at = next->to;
  }
  return text + "\n  The ranks wait for each other.";
}

}  // namespace

std::string DescribeCall(const CallRow& call) {
  if (call.call == Call::kDevice) return "the wait for its device";
  const std::string bytes = call.bytes > 0 ? fmt::format(" ({} bytes)", call.bytes) : "";
  if (call.peer < 0) {
    const std::string group = call.name.empty() ? "" : " of group " + call.name;
    const std::string number = call.sequence > 0 ? fmt::format(" {}", call.sequence) : "";
    return fmt::format("{}{}{}{}", comm::NameOf(call.call), number, group, bytes);
  }
  return fmt::format("{} {} with tag {} {} member {} of group {}{}", comm::NameOf(call.call),
                     call.sequence, call.tag, call.call == Call::kReceive ? "from" : "to",
                     call.peer, call.name, bytes);
}

Verdict Judge(const std::vector<RankTable>& ranks, const std::vector<SilentNode>& silent) {
  const Graph graph(ranks);
  std::vector<const RankTable*> guilty;
  for (const RankTable& rank : ranks) {
    if (Disabled(rank)) guilty.push_back(&rank);
  }
  const bool someone = !guilty.empty() || !silent.empty();
  for (const RankTable* rank : Idle(ranks, graph)) {
    if (!someone || graph.IsWaitedFor(*rank)) guilty.push_back(rank);
  }
  std::ranges::sort(guilty, {}, &RankTable::rank);

  Verdict verdict;
  for (const RankTable* rank : guilty) {
    const Culprit& culprit = verdict.culprits.emplace_back(MakeCulprit(*rank, graph));
    verdict.text += "\n  " + culprit.text;
    if (culprit.waiting.empty()) continue;
    verdict.text += fmt::format("\n    {} {} for it", ListRanks(culprit.waiting),
                                culprit.waiting.size() == 1 ? "waits" : "wait");
  }
  for (const SilentNode& node : silent) {
    verdict.text += fmt::format(
        "\n  {} ({}) says nothing: the host or its network is down, or "
        "all its ranks are stopped",
        node.host, ListRanks(node.ranks));
  }
  if (guilty.empty() && silent.empty()) verdict.text += DescribeAllWaiting(ranks, graph);
  verdict.text += Mismatches(ranks);
  // The place reported is that of the rank which has come furthest.
  const auto last = std::ranges::max_element(
      ranks, {}, [](const RankTable& rank) { return std::pair(rank.step, rank.phase); });
  if (last != ranks.end()) {
    verdict.where = Describe(last->phase, last->step);
    verdict.step = last->step;
  }
  return verdict;
}

}  // namespace trireme::comm
