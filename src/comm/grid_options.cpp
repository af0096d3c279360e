// The deck's [grid] besides the sizes of the axes: how ranks use their groups.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>

#include "nearest_divisors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {

namespace {

void CheckSequenceParallel(const Options& options, const deck::Deck& deck,
                           const GridShape& shape) {
  if (!options.sequence_parallel || !options.sequence_parallel_given || shape.tensor > 1) return;
  throw deck.Complain("grid.sequence_parallel",
                      "it cuts the rows over the tensor group, which has one rank",
                      "What fits: grid.tensor >= 2, or grid.sequence_parallel = no.");
}

// 0 without sharding: a preset's size has no effect then, but a user's is refused.
int ReadShardGroup(const Options& options, const deck::Deck& deck, const GridShape& shape) {
  const std::string key = "grid.shard_group";
  const std::int64_t group = options.shard_group;
  if (group == 0) return 0;
  if (options.sharding == Sharding::kNone) {
    if (!options.shard_group_given) return 0;
    throw deck.Complain(key, "nothing is sharded with grid.sharding = none",
                        "What fits: grid.sharding = optimizer, gradients or parameters; or leave "
                        "grid.shard_group out.");
  }
  const std::int64_t whole = std::int64_t{shape.data} * shape.context;
  if (whole % group != 0) {
    const auto any = [](std::int64_t) { return true; };
    throw deck.Complain(key,
                        fmt::format("it does not divide data {} x context {} = {} rank{}",
                                    shape.data, shape.context, whole, whole == 1 ? "" : "s"),
                        fmt::format("What fits: grid.shard_group = {}, or 0 (all of them).",
                                    fmt::join(NearestDivisors(whole, group, any), " or ")));
  }
  return static_cast<int>(group);
}

}  // namespace

GridOptions ReadGridOptions(const Options& options, const deck::Deck& deck,
                            const GridShape& shape) {
  CheckSequenceParallel(options, deck, shape);
  return {.sequence_parallel = options.sequence_parallel,
          .sharding = options.sharding,
          .shard_group = ReadShardGroup(options, deck, shape)};
}

}  // namespace trireme::comm
