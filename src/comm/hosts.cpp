// Hosts: gathered so that no rank holds or receives more than a few bytes per other rank.
#include "trireme/comm/hosts.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <algorithm>
#include <utility>

namespace trireme::comm {

namespace {

// What each rank sends to all others.
struct Place {
  std::int32_t first = 0;  // world rank of its node's first rank
  std::int32_t name = 0;   // index of its host's name among those of its node
  std::int32_t bytes = 0;  // length of its node's names if it is the node's first rank, else 0
};

// The node's host names, each once and zero-terminated, and the index of `mine` among them.
std::pair<std::string, int> NamesOfNode(const Communicator& node, const std::string& mine) {
  std::vector<std::string> names;
  for (const std::string& name : node.Gather(mine)) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  std::string joined;
  for (const std::string& name : names) joined += name + '\0';
  return {joined, static_cast<int>(std::ranges::find(names, mine) - names.begin())};
}

// Comparison of clocks: each rank asks rank 0 for the time repeatedly and keeps the answer of the
// shortest round trip.

constexpr int kTrips = 64;  // so many that the shortest one is hardly delayed
constexpr int kQuestion = 1, kAnswer = 2;

void Answer(const Communicator& group, int rank, const std::function<double()>& clock) {
  for (int i = 0; i < kTrips; ++i) {
    MPI_Recv(nullptr, 0, MPI_BYTE, rank, kQuestion, group.Handle(), MPI_STATUS_IGNORE);
    const double now = clock();
    MPI_Send(&now, 1, MPI_DOUBLE, rank, kAnswer, group.Handle());
  }
}

ClockComparison Ask(const Communicator& group, const std::function<double()>& clock) {
  ClockComparison best;
  for (int i = 0; i < kTrips; ++i) {
    const double before = clock();
    MPI_Send(nullptr, 0, MPI_BYTE, 0, kQuestion, group.Handle());
    double answer = 0;
    MPI_Recv(&answer, 1, MPI_DOUBLE, 0, kAnswer, group.Handle(), MPI_STATUS_IGNORE);
    const double after = clock(), error = (after - before) / 2;
    if (i > 0 && error >= best.error) continue;
    const double middle = before + error;
    best = {.at = middle, .offset = answer - middle, .error = error};
  }
  return best;
}

}  // namespace

std::int32_t Hosts::Table::Add(const std::string& name,
                               std::map<std::string, std::int32_t>& known) {
  const auto [at, added] = known.emplace(name, static_cast<std::int32_t>(names.size()));
  if (added) names.push_back(name);
  return at->second;
}

Hosts::Hosts(const std::vector<std::string>& names) {
  Table table;
  std::map<std::string, std::int32_t> known;
  for (const std::string& name : names) table.of_rank.push_back(table.Add(name, known));
  table_ = std::make_shared<const Table>(std::move(table));
}

HostMap HostMap::Gather(const Communicator& world, const Communicator& node,
                        const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(world.Size());
  const auto [own_names, own_place] = NamesOfNode(node, mine);
  const Place own{.first = static_cast<std::int32_t>(node.Min(std::int64_t{world.Rank()})),
                  .name = own_place,
                  .bytes = node.IsRoot() ? static_cast<std::int32_t>(own_names.size()) : 0};
  std::vector<Place> places(ranks);
  MPI_Allgather(&own, sizeof own, MPI_BYTE, places.data(), sizeof own, MPI_BYTE, world.Handle());
  std::vector<int> counts(ranks), starts(ranks);
  int total = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    counts[rank] = places[rank].bytes;
    starts[rank] = total;
    total += counts[rank];
  }
  std::string names(static_cast<std::size_t>(total), '\0');
  MPI_Allgatherv(own_names.data(), own.bytes, MPI_CHAR, names.data(), counts.data(), starts.data(),
                 MPI_CHAR, world.Handle());

  HostMap map;
  Hosts::Table table;
  std::map<std::string, std::int32_t> known;
  std::map<std::int32_t, std::vector<std::int32_t>> of_node;  // name indices, by node's first rank
  std::map<std::int32_t, std::int32_t> number;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (counts[rank] == 0) continue;
    const auto first = static_cast<std::int32_t>(rank);
    number.emplace(first, static_cast<std::int32_t>(number.size()));
    const char* const end = names.data() + starts[rank] + counts[rank];
    for (const char* at = names.data() + starts[rank]; at < end;) {
      const std::string name(at);
      at += name.size() + 1;
      of_node[first].push_back(table.Add(name, known));
    }
  }
  table.of_rank.reserve(ranks);
  map.nodes.reserve(ranks);
  for (const Place& place : places) {
    table.of_rank.push_back(of_node[place.first].at(static_cast<std::size_t>(place.name)));
    map.nodes.push_back(number[place.first]);
  }
  map.hosts = Hosts(std::move(table));
  return map;
}

// ListRanks: ranks as a person would list them.

std::string ListRanks(const std::vector<int>& ranks) {
  constexpr int kMaximumListed = 16;  // numbers and ranges; the ranks after them are only counted
  std::string list;
  int listed = 0;
  std::size_t begin = 0;
  for (int items = 0; begin < ranks.size() && items < kMaximumListed; ++items) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin < 3) end = begin + 1;  // "3, 4" reads better than "3-4"
    list += list.empty() ? "" : ", ";
    list += fmt::to_string(ranks[begin]);
    if (end - begin > 1) list += fmt::format("-{}", ranks[end - 1]);
    listed += static_cast<int>(end - begin);
    begin = end;
  }
  const int left = static_cast<int>(ranks.size()) - listed;
  if (left > 0) list += fmt::format(" and {} more", left);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", list);
}

std::string ListRanks(const std::vector<int>& ranks, int size) {
  return fmt::format("{} of {}", ListRanks(ranks), size);
}

ClockComparison CompareClocks(const Communicator& group, std::span<const int> ranks,
                              const std::function<double()>& clock) {
  ClockComparison mine{.at = clock()};
  if (group.IsRoot()) {
    for (const int rank : ranks) {
      if (rank != 0) Answer(group, rank, clock);
    }
  } else if (std::ranges::binary_search(ranks, group.Rank())) {
    mine = Ask(group, clock);
  }
  return mine;
}

double Drift(const ClockComparison& first, const ClockComparison& last) {
  return last.at > first.at ? (last.offset - first.offset) / (last.at - first.at) : 0;
}

double Aligned(double seconds, const ClockComparison& first, const ClockComparison& last) {
  return seconds + first.offset + Drift(first, last) * (seconds - first.at);
}

}  // namespace trireme::comm
