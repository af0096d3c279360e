// Hosts: the name of each rank's host, each name kept once: 4 bytes a rank and a string a host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

class Communicator;

// Copies share their memory.
class Hosts {
 public:
  Hosts() : Hosts(std::vector<std::string>{}) {}
  // names: of world rank 0, 1, ...
  explicit Hosts(const std::vector<std::string>& names);
  Hosts(std::initializer_list<std::string> names) : Hosts(std::vector<std::string>(names)) {}

  // Place of the rank's host among the names.
  int Number(int rank) const { return table_->of_rank.at(static_cast<std::size_t>(rank)); }
  const std::string& Of(int rank) const {
    return table_->names.at(static_cast<std::size_t>(Number(rank)));
  }
  const std::string& First() const { return Of(0); }
  int Ranks() const { return static_cast<int>(table_->of_rank.size()); }
  const std::vector<std::string>& Names() const { return table_->names; }  // by first rank

 private:
  struct Table {
    std::vector<std::string> names;
    std::vector<std::int32_t> of_rank;  // place among the names
    // The name's place. known: those of all names.
    std::int32_t Add(const std::string& name, std::map<std::string, std::int32_t>& known);
  };
  explicit Hosts(Table table) : table_(std::make_shared<const Table>(std::move(table))) {}
  friend struct HostMap;
  std::shared_ptr<const Table> table_;
};

// Places of all ranks.
struct HostMap {
  Hosts hosts;
  std::vector<std::int32_t> nodes;  // [ranks]: number of the rank's node, by its first rank
  // Collective over `world`. mine: name of this rank's host; node: the ranks that share it. Each
  // rank receives 12 bytes from every other, and each host's name once from its node.
  static HostMap Gather(const Communicator& world, const Communicator& node,
                        const std::string& mine);
};

// Lists of ranks, as messages name them.

// "rank 3 of 8", "ranks 3, 5-7 of 8", "ranks 0, 2, 4, ... and 48 more of 128". `ranks` ascends.
std::string ListRanks(const std::vector<int>& ranks, int size);
// The same without the size: "rank 3", "ranks 3, 5-7".
std::string ListRanks(const std::vector<int>& ranks);

// Comparison of the clocks of ranks by messages that go to and fro (Cristian 1989).

struct ClockComparison {
  double at = 0;      // of this rank's clock, seconds
  double offset = 0;  // rank 0's clock less this one's, at that time
  double error = 0;   // the most by which the offset is wrong: half of the shortest round trip
};

// Collective over rank 0 and `ranks`, which are ascending; others may call it and get zeros. clock:
// seconds, of this rank. Takes some tens of round trips for each of the ranks, one after another.
// No other messages of the group may be under way.
ClockComparison CompareClocks(const Communicator& group, std::span<const int> ranks,
                              const std::function<double()>& clock);

// A clock between two comparisons of it: seconds of rank 0's clock, straight through both.
double Aligned(double seconds, const ClockComparison& first, const ClockComparison& last);
// Seconds a second by which rank 0's clock is the faster one; 0 if the two are of one moment.
double Drift(const ClockComparison& first, const ClockComparison& last);

}  // namespace trireme::comm
