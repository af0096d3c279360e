// PlanOwnership: pieces of the flat range, the owned part of each, and its place in storage.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/parallel/sharding_cut.hpp"

namespace trireme::parallel {

namespace {

using comm::Sharding;

// An MPI count is an int: no bucket may pass it, and parameters larger than that are cut.
constexpr std::int64_t kShardingOwnershipMostElements = std::int64_t{1} << 28;

// From the end, as the backward pass finishes them.
std::vector<Part> Buckets(const kernels::ParameterList& list, std::int64_t bucket_elements) {
  std::vector<Part> buckets;
  std::int64_t end = list.Size();
  const auto& parameters = list.Parameters();
  for (std::size_t i = parameters.size(); i-- > 0;) {
    // Nothing becomes ready at a parameter that other ranks hold: a bucket cut there would wait for
    // the next one before it.
    if (i > 0 && !parameters[i].Held()) continue;
    const std::int64_t begin = i == 0 ? 0 : parameters[i].offset;
    while (end - begin > kShardingOwnershipMostElements) {
      buckets.push_back({end - kShardingOwnershipMostElements, end});
      end -= kShardingOwnershipMostElements;
    }
    if (end - begin >= bucket_elements || i == 0) {
      if (end > begin) buckets.push_back({begin, end});
      end = begin;
    }
  }
  return buckets;
}

// Traits of a unit that decide about its grouping.
struct UnitTraits {
  std::int64_t elements = 0;  // a tensor rank's share, the same on all of them
  bool alone = false;         // holds the table that two stages or two gradients share
};

std::vector<UnitTraits> TraitsOf(const kernels::ParameterList& list, int tensor_ranks) {
  std::vector<UnitTraits> traits(list.Units().size());
  const auto& parameters = list.Parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto id = static_cast<kernels::ParameterId>(i);
    UnitTraits& unit = traits[static_cast<std::size_t>(list.UnitOf(id))];
    unit.elements += kernels::ElementCount(parameters[i].shape);
    if (parameters[i].sum == kernels::GradientSum::kTied || list.SecondOf() == id) {
      unit.alone = true;
    }
  }
  for (UnitTraits& unit : traits) unit.elements /= tensor_ranks;
  return traits;
}

// Whole units, from the end, as many as make a bucket.
std::vector<Part> UnitGroups(const kernels::ParameterList& list, std::int64_t bucket_elements,
                             int tensor_ranks) {
  const std::vector<UnitTraits> traits = TraitsOf(list, tensor_ranks);
  const auto& units = list.Units();
  std::vector<Part> groups;
  Part group{list.Size(), list.Size()};
  std::int64_t elements = 0;
  const auto close = [&] {
    if (group.Size() > 0) groups.push_back(group);
    group.end = group.begin;
    elements = 0;
  };
  for (std::size_t i = units.size(); i-- > 0;) {
    if (units[i].range.Size() == 0) continue;
    if (traits[i].alone) close();
    group.begin = units[i].range.begin;
    elements += traits[i].elements;
    if (traits[i].alone || elements >= bucket_elements) close();
  }
  close();
  return groups;
}

std::vector<Part> WholeUnits(const kernels::ParameterList& list) {
  std::vector<Part> units;
  for (const kernels::Unit& unit : list.Units()) {
    if (unit.range.Size() > 0) units.push_back(unit.range);
  }
  std::reverse(units.begin(), units.end());
  return units;
}

std::vector<Part> CutPieces(const kernels::ParameterList& list, Dtype dtype,
                            const ShardSetup& setup) {
  const std::int64_t elements =
      CeilDivide(setup.bucket_bytes, static_cast<std::int64_t>(SizeOf(dtype)));
  switch (setup.sharding) {
    case Sharding::kNone:
      return Buckets(list, elements);
    case Sharding::kOptimizer:
      return UnitGroups(list, elements, setup.tensor_ranks);
    default:
      return WholeUnits(list);
  }
}

// Cuts a piece between parameters only: each cut is the parameter's begin that lies nearest to an
// even one. Elements of each rank.
std::vector<std::int64_t> CutBetweenParameters(const kernels::ParameterList& list, const Part& range,
                                               int ranks) {
  std::vector<std::int64_t> cuts = {range.begin, range.end};
  for (const kernels::Parameter& parameter : list.Parameters()) {
    const std::int64_t begin = parameter.offset;
    if (parameter.Held() && begin > range.begin && begin < range.end) cuts.push_back(begin);
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::int64_t> counts;
  std::int64_t begin = range.begin;
  for (int rank = 1; rank <= ranks; ++rank) {
    const std::int64_t even = range.begin + PartOf(range.Size(), rank - 1, ranks).end;
    const auto distance = [even](std::int64_t cut) { return cut < even ? even - cut : cut - even; };
    const std::int64_t end = *std::min_element(
        cuts.begin(), cuts.end(),
        [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
    counts.push_back(end - begin);
    begin = end;
  }
  return counts;
}

// The elements of `range` that this rank owns; with parameters kept whole, every rank's count too.
void Share(const kernels::ParameterList& list, const ShardSetup& setup, kernels::Piece& piece) {
  const Part& range = piece.range;
  Part own = {0, range.Size()};
  if (setup.sharding != Sharding::kNone && setup.whole_parameters) {
    piece.counts = CutBetweenParameters(list, range, setup.ranks);
    const auto mine = piece.counts.begin() + setup.rank;
    own.begin = std::accumulate(piece.counts.begin(), mine, std::int64_t{0});
    own.end = own.begin + *mine;
  } else if (setup.sharding != Sharding::kNone) {
    own = OwnPart(range.Size(), setup.rank, setup.ranks);
  }
  piece.own = {range.begin + own.begin, range.begin + own.end};
}

}  // namespace

kernels::Ownership PlanOwnership(const kernels::ParameterList& list, Dtype dtype,
                                const ShardSetup& setup) {
  const bool none = setup.sharding == Sharding::kNone;
  const Part second = list.SecondRange();
  kernels::Ownership owns;
  owns.values_sharded = setup.sharding == Sharding::kParameters;
  owns.gradients_sharded = setup.sharding >= Sharding::kGradients && !setup.canonical;
  owns.gradient_levels = setup.gradient_levels;
  if (owns.gradients_sharded && (second.Size() > 0 || setup.gradient_levels > 1)) {
    throw RunError("sharding: a second gradient or copies of gradients, which are sharded",
                   "This is a bug in Trireme.");
  }
  std::vector<Part> cut = CutPieces(list, dtype, setup);
  std::reverse(cut.begin(), cut.end());
  for (const Part& range : cut) {
    kernels::Piece piece{range, range, range.begin, range.begin, range.begin};
    Share(list, setup, piece);
    if (!none) {
      piece.value = owns.values_sharded ? owns.values : piece.own.begin;
      piece.gradient = owns.gradients_sharded ? owns.gradients : range.begin;
      piece.moment = owns.moments;
    }
    // Each piece begins on a line, as even cuts make it by themselves.
    const std::int64_t stored =
        piece.counts.empty() ? piece.own.Size() : CeilDivide(piece.own.Size(), kCut) * kCut;
    owns.values += stored;
    owns.gradients += stored;
    owns.moments += stored;
    owns.pieces.push_back(std::move(piece));
  }
  if (none) owns.moments = list.Size();
  if (!owns.values_sharded) owns.values = list.Size();
  if (!owns.gradients_sharded) owns.gradients = list.GradientSize();
  // Each copy begins where products want it.
  if (owns.gradient_levels > 1) owns.gradients = CeilDivide(owns.gradients, kCut) * kCut;
  if (second.Size() > 0) {
    // Cut as its table is, whose unit may end in up to a line of padding.
    kernels::Piece piece{second, second, 0, second.begin, 0};
    Share(list, setup, piece);
    owns.pieces.push_back(std::move(piece));
  }
  return owns;
}

void CheckTransfers(const kernels::ParameterList& list, const kernels::Ownership& owns) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  for (const kernels::Piece& piece : owns.pieces) {
    if (piece.range.Size() <= kMost) continue;
    for (const kernels::Unit& unit : list.Units()) {
      if (unit.range.begin < piece.range.begin || unit.range.Size() == 0) continue;
      throw InputError(
          fmt::format("grid.sharding: {} has {} elements on a rank, and one transfer ends at {}",
                      unit.name, unit.range.Size(), kMost),
          "What helps: more ranks along grid.tensor, or grid.sharding = none.");
    }
  }
}

}  // namespace trireme::parallel
