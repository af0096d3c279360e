// Hosts: the host name of each rank. Each name is stored once, so a rank costs 4 bytes.
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
  // names: host of world rank 0, 1, ...
  explicit Hosts(const std::vector<std::string>& names);
  Hosts(std::initializer_list<std::string> names) : Hosts(std::vector<std::string>(names)) {}

  // Index of the rank's host in Names().
  int Number(int rank) const { return table_->of_rank.at(static_cast<std::size_t>(rank)); }
  const std::string& Of(int rank) const {
    return table_->names.at(static_cast<std::size_t>(Number(rank)));
  }
  const std::string& First() const { return Of(0); }
  int Ranks() const { return static_cast<int>(table_->of_rank.size()); }
  const std::vector<std::string>& Names() const { return table_->names; }  // sorted by first rank

 private:
  struct Table {
    std::vector<std::string> names;
    std::vector<std::int32_t> of_rank;  // [ranks]: index in `names`
    // Index of the name, which is added if new. known: index of each name so far.
    std::int32_t Add(const std::string& name, std::map<std::string, std::int32_t>& known);
  };
  explicit Hosts(Table table) : table_(std::make_shared<const Table>(std::move(table))) {}
  friend struct HostMap;
  std::shared_ptr<const Table> table_;
};

// Host and node of every rank.
struct HostMap {
  Hosts hosts;
  std::vector<std::int32_t> nodes;  // [ranks]: the rank's node; nodes are numbered by first rank
  // Collective over `world`. mine: name of this rank's host; node: the ranks that share it. Each
  // rank receives 12 bytes from every other rank, and each node's host names once.
  static HostMap Gather(const Communicator& world, const Communicator& node,
                        const std::string& mine);
};

// Lists of ranks, as messages print them.

// "rank 3 of 8", "ranks 3, 5-7 of 8", "ranks 0, 2, 4, ... and 48 more of 128". `ranks` ascends.
std::string ListRanks(const std::vector<int>& ranks, int size);
// The same without the size: "rank 3", "ranks 3, 5-7".
std::string ListRanks(const std::vector<int>& ranks);

// Comparison of ranks' clocks by round trips of messages (Cristian 1989).

struct ClockComparison {
  double at = 0;      // seconds, on this rank's clock
  double offset = 0;  // rank 0's clock minus this rank's at that time, seconds
  double error = 0;   // bound on the error of `offset`, seconds: half of the shortest round trip
};

// Collective over rank 0 and `ranks` (ascending); other ranks may call it and get zeros. clock:
// this rank's, in seconds. Takes tens of round trips per rank, one rank after another. No other
// messages of the group may be under way.
ClockComparison CompareClocks(const Communicator& group, std::span<const int> ranks,
                              const std::function<double()>& clock);

// Converts seconds of this rank's clock to rank 0's, linearly through two comparisons.
double Aligned(double seconds, const ClockComparison& first, const ClockComparison& last);
// Seconds per second by which rank 0's clock is faster; 0 if both comparisons are of one moment.
double Drift(const ClockComparison& first, const ClockComparison& last);

}  // namespace trireme::comm
