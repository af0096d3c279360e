// PlanKinds: ranks whose memory is alike, without planning each of a hundred thousand ranks.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "trireme/base/positions.hpp"
#include "trireme/parallel/sharding_cut.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

namespace {

// Coordinates along one axis that cut all sizes alike.
struct AxisClass {
  int first = 0;
  std::int64_t ranks = 0;
};

// Slices of hidden features and vocabulary; heads are cut evenly, and rows of the residual stream
// are planned for the largest part.
std::vector<AxisClass> TensorClasses(const Plan& plan) {
  const model::Options& model = plan.training.model.options;
  std::map<std::tuple<std::int64_t, std::int64_t>, AxisClass> classes;
  for (int rank = 0; rank < plan.grid.tensor; ++rank) {
    const auto slice = [&](std::int64_t total) {
      return PartOf(total, rank, plan.grid.tensor).Size();
    };
    const auto [at, added] = classes.try_emplace({slice(model.ffn), slice(model.vocabulary)});
    if (added) at->second.first = rank;
    ++at->second.ranks;
  }
  std::vector<AxisClass> list;
  for (const auto& [sizes, of_sizes] : classes) list.push_back(of_sizes);
  return list;
}

// Elements that each place of a shard group owns, [ranks]. Pieces of one length are cut alike.
std::vector<std::int64_t> OwnedElements(const kernels::Ownership& owns, int ranks) {
  std::map<std::int64_t, std::int64_t> lengths;  // length, pieces of it
  for (const kernels::Piece& piece : owns.pieces) ++lengths[piece.range.Size()];
  std::vector<std::int64_t> owned(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& [length, pieces] : lengths) {
      owned[static_cast<std::size_t>(rank)] +=
          pieces * parallel::OwnPart(length, rank, ranks).Size();
    }
  }
  return owned;
}

// Kinds of the ranks of one stage and one class of slices.
class StageKinds {
 public:
  StageKinds(const Plan& plan, int stage, const AxisClass& tensor)
      : plan_(plan),
        stage_(stage),
        tensor_(tensor),
        shard_ranks_(comm::ShardRanks(plan.grid, plan.sharing)) {
    if (shard_ranks_ > 1) FindOwned();
  }

  void Append(std::vector<RankKind>& kinds) const {
    std::map<std::tuple<std::int64_t, std::int64_t>, RankKind> found;
    for (int data = 0; data < plan_.grid.data; ++data) {
      for (int context = 0; context < plan_.grid.context; ++context) {
        const auto [at, added] = found.try_emplace(
            {PositionsOf(plan_.training.model.length, context, plan_.grid.context).Count(),
             Owned(data, context)});
        if (added) at->second.first = RankOf(data, context);
        at->second.ranks += tensor_.ranks;
      }
    }
    for (auto& [sizes, kind] : found) {
      kind.memory = PlanMemory(plan_, kind.first);
      kinds.push_back(kind);
    }
  }

 private:
  int RankOf(int data, int context) const {
    return comm::RankAt(
        {.pipeline = stage_, .data = data, .context = context, .tensor = tensor_.first},
        plan_.grid);
  }
  void FindOwned() { owned_ = OwnedElements(PlanPieces(plan_, RankOf(0, 0)), shard_ranks_); }
  std::int64_t Owned(int data, int context) const {
    if (owned_.empty()) return 0;
    const int place = (data * plan_.grid.context + context) % shard_ranks_;
    return owned_[static_cast<std::size_t>(place)];
  }

  const Plan& plan_;
  int stage_;
  AxisClass tensor_;
  int shard_ranks_;
  std::vector<std::int64_t> owned_;  // [places of a shard group]; empty: nothing is sharded
};

}  // namespace

std::vector<RankKind> PlanKinds(const Plan& plan) {
  std::vector<RankKind> kinds;
  for (const AxisClass& tensor : TensorClasses(plan)) {
    for (int stage = 0; stage < plan.grid.pipeline; ++stage) {
      StageKinds(plan, stage, tensor).Append(kinds);
    }
  }
  std::ranges::sort(kinds, [](const RankKind& a, const RankKind& b) {
    const std::int64_t most = a.memory.Total(), other = b.memory.Total();
    return most != other ? most > other : a.first < b.first;
  });
  return kinds;
}

}  // namespace trireme::train
