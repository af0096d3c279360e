// Measure: passes over all nodes at once, and their results on rank 0.
#include "trireme/tools/measure.hpp"

#include <mpi.h>

#include <algorithm>
#include <limits>

#include "speeds.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::tools {

namespace {

constexpr int kPasses = 2;

// Ranks of a unit, and the units' first ranks.
struct Parts {
  const comm::Communicator& world;
  comm::Communicator unit, firsts;  // firsts: null elsewhere
};

// Values of this rank's unit, complete on its first rank.
Unit MeasureUnit(const Parts& parts, const device::Stream& stream, Dtype dtype,
                 double& all_reduce) {
  const comm::Communicator& unit = parts.unit;
  Unit mine;
  mine.rank = parts.world.Rank();
  parts.world.Barrier();
  const Product product = MeasureProduct(stream, dtype);
  const double slowest = -unit.Max(-product.flops);
  mine.values[static_cast<std::size_t>(Quantity::kProduct)] = slowest;
  mine.slowest = unit.Min(product.flops == slowest ? std::int64_t{parts.world.Rank()}
                                                   : std::numeric_limits<std::int64_t>::max());
  mine.wrong = unit.Sum(std::int64_t{product.right ? 0 : 1});
  parts.world.Barrier();
  mine.values[static_cast<std::size_t>(Quantity::kMemory)] = unit.Sum(MeasureMemory(stream));
  parts.world.Barrier();
  if (unit.IsRoot()) {
    const Pairs pairs = MeasurePairs(parts.firsts);
    mine.values[static_cast<std::size_t>(Quantity::kPairs)] = pairs.median;
    mine.worst_pair = pairs.worst;
    mine.worst_partner = pairs.worst_partner;
  }
  parts.world.Barrier();
  mine.values[static_cast<std::size_t>(Quantity::kTogether)] =
      unit.Sum(MeasureTogether(parts.world));
  all_reduce = std::max(all_reduce, MeasureAllReduce(parts.world));
  return mine;
}

// The units of all, on world rank 0; receives one Unit from each.
std::vector<Unit> Gather(const Parts& parts, const Unit& mine) {
  std::vector<Unit> units;
  if (!parts.unit.IsRoot()) return units;
  const comm::Communicator& firsts = parts.firsts;
  if (firsts.IsRoot()) units.resize(static_cast<std::size_t>(firsts.Size()));
  MPI_Gather(&mine, sizeof mine, MPI_BYTE, units.data(), sizeof mine, MPI_BYTE, 0, firsts.Handle());
  return units;
}

void TakeBest(const std::vector<Unit>& more, std::vector<Unit>& units) {
  if (units.empty()) {
    units = more;
    return;
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    Unit& unit = units[i];
    for (int q = 0; q < kQuantities; ++q) {
      const auto at = static_cast<std::size_t>(q);
      if (static_cast<Quantity>(q) == Quantity::kProduct && more[i].values[at] > unit.values[at]) {
        unit.slowest = more[i].slowest;
      }
      unit.values[at] = std::max(unit.values[at], more[i].values[at]);
    }
    if (more[i].worst_pair > unit.worst_pair) {
      unit.worst_pair = more[i].worst_pair;
      unit.worst_partner = more[i].worst_partner;
    }
    unit.wrong = std::max(unit.wrong, more[i].wrong);
  }
}

}  // namespace

Measured Measure(const comm::Communicator& world, const comm::Communicator& node,
                 const device::Stream& stream, Dtype dtype) {
  const double start = Seconds();
  Measured measured;
  measured.of_ranks = world.Max(std::int64_t{node.Size()}) == world.Size();
  const std::int64_t first =
      measured.of_ranks ? world.Rank() : node.Min(std::int64_t{world.Rank()});
  Parts parts{.world = world,
              .unit = world.Split(static_cast<int>(first), world.Rank(), "unit"),
              .firsts = world.Split(first == world.Rank() ? 0 : 1, world.Rank(), "units")};
  for (int pass = 0; pass < kPasses; ++pass) {
    const Unit mine = MeasureUnit(parts, stream, dtype, measured.all_reduce);
    TakeBest(Gather(parts, mine), measured.units);
    const std::int64_t slow = std::ssize(FindSlow(measured.units));  // none but on rank 0
    if (world.Max(slow) == 0) break;
  }
  measured.seconds = Seconds() - start;
  return measured;
}

}  // namespace trireme::tools
