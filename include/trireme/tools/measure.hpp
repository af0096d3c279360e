// Speeds of nodes, measured as training will use them: matrix products, memory, network.
#ifndef TRIREME_TOOLS_MEASURE_HPP_
#define TRIREME_TOOLS_MEASURE_HPP_

#include <array>
#include <cstdint>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::tools {

enum class Quantity {
  kProduct,   // of the node's slowest rank, all ranks at work, FLOP/s
  kMemory,    // of all ranks of the node at once, bytes/s
  kPairs,     // both ways with one other node at a time, the median over partners, bytes/s
  kTogether,  // both ways, all ranks of all nodes at once across the middle of the job, bytes/s
};
inline constexpr int kQuantities = 4;
struct QuantityName {
  const char* name;   // in records: "product"
  const char* title;  // on the screen
  const char* unit;   // of what is shown
  double scale;       // a shown unit
};
inline constexpr std::array<QuantityName, kQuantities> kQuantityNames = {
    {{"product", "matrix product, a rank", "GFLOP/s", 1e9},
     {"memory", "memory", "GB/s", 1e9},
     {"pairs", "network in pairs", "GB/s", 1e9},
     {"together", "network, all together", "GB/s", 1e9}}};

// Measured values of one unit: a node or, on a single host, a rank. 0: not measured.
struct Unit {
  std::array<double, kQuantities> values{};
  double worst_pair = 0;            // bytes/s
  std::int64_t rank = 0;            // world rank of its first rank
  std::int64_t slowest = 0;         // world rank with the slowest product
  std::int64_t worst_partner = -1;  // number of the unit at the other end of the worst pair
  std::int64_t wrong = 0;           // ranks whose product was not finite or not the same twice
};

struct Measured {
  bool of_ranks = false;    // units are ranks of one host
  std::vector<Unit> units;  // on rank 0
  double all_reduce = 0;    // bytes/s that each rank gets summed over all ranks; on rank 0
  double seconds = 0;       // taken by measuring
};

// Collective. Takes seconds, whatever the number of nodes. Units that a first pass finds slow are
// measured once more, and the better value counts.
Measured Measure(const comm::Communicator& world, const comm::Communicator& node,
                 const device::Stream& stream, Dtype dtype);

// A unit that is more than kSlow slower than the median.
inline constexpr double kSlow = 0.05;
struct Slow {
  std::size_t unit = 0;
  Quantity quantity = Quantity::kProduct;
  double value = 0, median = 0;
};
// Of two, the median is the faster. The slowest first, for each quantity in turn.
std::vector<Slow> FindSlow(const std::vector<Unit>& units);
double Median(const std::vector<Unit>& units, Quantity quantity);

// Partner of `self` in a round of a tournament of `players`, in which each meets each other once;
// -1: it pauses. Rounds are numbered from 0 to Rounds(players) - 1.
int Rounds(int players);
int Partner(int self, int round, int players);
// The rounds that are played: all, or a bounded number spread over them.
std::vector<int> ChosenRounds(int players);

}  // namespace trireme::tools

#endif  // TRIREME_TOOLS_MEASURE_HPP_
