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

constexpr Sharding kShardings[] = {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients,
                                   Sharding::kParameters};

Sharding ReadSharding(const input::Deck& deck) {
  const std::string& name = deck.Text("grid.sharding");
  for (const Sharding sharding : kShardings) {
    if (name == NameOf(sharding)) return sharding;
  }
  throw deck.Complain("grid.sharding", "is not known");
}

void CheckSequenceParallel(const input::Deck& deck, const GridShape& shape) {
  const std::string key = "grid.sequence_parallel";
  if (!deck.Switch(key) || !deck.Given(key) || shape.tensor > 1) return;
  throw deck.Complain(key, "it cuts the rows over the tensor group, which has one rank",
                      "What fits: grid.tensor >= 2, or grid.sequence_parallel = no.");
}

// 0 without sharding, where a preset's size has no effect, but a user's would be ignored.
int ReadShardGroup(const input::Deck& deck, const GridShape& shape, Sharding sharding) {
  const std::string key = "grid.shard_group";
  const std::int64_t group = deck.Integer(key);
  if (group == 0) return 0;
  if (sharding == Sharding::kNone) {
    if (!deck.Given(key)) return 0;
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

const char* NameOf(Sharding sharding) {
  switch (sharding) {
    case Sharding::kNone:
      return "none";
    case Sharding::kOptimizer:
      return "optimizer";
    case Sharding::kGradients:
      return "gradients";
    case Sharding::kParameters:
      return "parameters";
  }
  return "?";
}

GridOptions ReadGridOptions(const input::Deck& deck, const GridShape& shape) {
  CheckSequenceParallel(deck, shape);
  GridOptions options;
  options.sequence_parallel = deck.Switch("grid.sequence_parallel");
  options.sharding = ReadSharding(deck);
  options.shard_group = ReadShardGroup(deck, shape, options.sharding);
  return options;
}

}  // namespace trireme::comm
