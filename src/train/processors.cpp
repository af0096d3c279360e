// CheckProcessors: kinds of processors within the groups whose ranks hold the same elements.
#include "trireme/train/processors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "trireme/checkpoint/block_hash.hpp"
#include "trireme/comm/same_everywhere.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/train/optimizer.hpp"

namespace trireme::train {

namespace {

// Two ranks of one group that differ.
struct Pair {
  int one = 0, other = 0;
};

// The first pair of ranks of one group with different texts. group_of: what ranks of one group have
// in common.
template <typename GroupOf>
std::optional<Pair> FindPair(std::span<const std::string> texts, GroupOf group_of) {
  std::map<decltype(group_of(0)), int> first;
  for (int rank = 0; rank < static_cast<int>(texts.size()); ++rank) {
    const int other = first.emplace(group_of(rank), rank).first->second;
    const auto text = [&](int of) { return texts[static_cast<std::size_t>(of)]; };
    if (text(rank) != text(other)) return Pair{other, rank};
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t UpdateBits(const TrainingState& state) {
  constexpr std::int64_t kElements = 10'007;  // vectors and a rest
  constexpr int kSteps = 3;
  constexpr double kRate = 1e-2, kNorm = 3;  // a gradient that is clipped by usual settings
  constexpr std::int64_t kTargets = 7;
  const device::Stream& stream = state.Stream();
  kernels::Parameter parameter;
  parameter.name = "test";
  parameter.shape = {kElements};
  parameter.initialiser = {kernels::InitialiserKind::kNormal, 1};
  parameter.decay = true;
  kernels::ParameterList list;
  list.Add(parameter);
  const kernels::Registry& model = state.Net().Parameters();
  kernels::Registry registry(list, model.Type(), true, stream);
  registry.Initialise(1);
  Optimizer optimizer(state.Plan().optimizer, registry, stream);
  const void* const values = registry.Masters() != nullptr ? registry.Masters() : registry.Values();
  for (int step = 1; step <= kSteps; ++step) {
    device::CopyWithin(stream, values, registry.Gradients(),
                       kElements * static_cast<std::int64_t>(SizeOf(registry.SumType())));
    optimizer.Step(step, kRate / step, kNorm, kTargets);
  }
  device::Synchronise(stream);
  const checkpoint::State result =
      StateToRead(stream, registry.ValueBlocks(0, 1, 1), optimizer.Blocks(0, 1, 1));
  std::uint64_t bits = 0;
  for (const auto* blocks : {&result.model, &result.optimizer}) {
    for (const kernels::StateBlock& block : *blocks) {
      bits = bits * 31 + checkpoint::BlockHash(block, block.begin, block.end, result.read);
    }
  }
  return bits;
}

std::string CheckProcessors(const comm::ProcessGrid& grid, const std::string& kind,
                            const std::function<std::uint64_t()>& bits, const comm::Hosts& hosts) {
  const comm::Communicator& world = grid.World();
  const comm::GridShape shape = grid.Shape();
  if (comm::SameEverywhere(world, kind)) return {};
  const std::vector<std::string> kinds = world.Gather(kind);
  const auto name = [&](int rank) {
    return fmt::format("rank {} on {} has {}", rank, hosts.Of(rank),
                       kinds[static_cast<std::size_t>(rank)]);
  };
  const auto mixed_tensor = FindPair(kinds, [&](int rank) {
    const comm::GridShape at = comm::Locate(rank, shape);
    return std::tuple(at.pipeline, at.data, at.context);
  });
  if (mixed_tensor) {
    throw AgreedError(
        ExitCode::kBadInput,
        fmt::format("processors differ: {}, but {}: both compute the gradients of norms that each "
                    "of them holds, and copies would drift apart",
                    name(mixed_tensor->one), name(mixed_tensor->other)),
        "Place the ranks of a tensor group (grid.tensor) on nodes of one kind.");
  }
  const int sharers = grid.Shard().Size();
  const auto same_elements = [&](int rank) {
    const comm::GridShape at = comm::Locate(rank, shape);
    return std::tuple(at.pipeline, at.tensor, (at.data * shape.context + at.context) % sharers);
  };
  const auto mixed = FindPair(kinds, same_elements);
  if (!mixed) return {};
  const std::vector<std::string> all_bits = world.Gather(std::to_string(bits()));
  const std::string who = fmt::format("{}, but {}", name(mixed->one), name(mixed->other));
  if (const auto drift = FindPair(all_bits, same_elements)) {
    throw AgreedError(
        ExitCode::kBadInput,
        fmt::format("processors differ: {}; the same update has other bits on rank {} than on "
                    "rank {}: replicas would drift apart",
                    who, drift->other, drift->one),
        "Use nodes of one kind, with one C library.");
  }
  return fmt::format(
      "processors differ: {}; a test update has the same bits on all, so that replicas stay "
      "equal, but losses depend in their last digits on which ranks compute what",
      who);
}

}  // namespace trireme::train
