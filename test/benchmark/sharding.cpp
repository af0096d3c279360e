// Costs of sharding and canonical arithmetic: several set-ups of one training, a step of each in
// turn, so that a noisy machine is as noisy for all. One rank: canonical against fast arithmetic.
// More: every kind of sharding against plain data parallelism.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "models.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/comm/runtime.hpp"

using namespace trireme;
using namespace trireme::benchmark;

namespace {

struct Variant {
  const char* name;
  comm::GridOptions options;
  int prefetch = 1;
  bool overlap = true;
  parallel::Canonical canonical = {};
  int context = 1;
};

std::vector<Variant> VariantsOf(int ranks) {
  using comm::Sharding;
  if (ranks == 1) {
    return {{"fast", {}},
            {"canonical 4x2, leaf 128", {}, 1, true, {4, 2, 128}},
            {"canonical 4x1, leaf 128", {}, 1, true, {4, 1, 128}}};
  }
  return {{"none", {}},
          {"optimizer", {.sharding = Sharding::kOptimizer}},
          {"gradients", {.sharding = Sharding::kGradients}},
          {"parameters", {.sharding = Sharding::kParameters}},
          {"parameters, prefetch 2", {.sharding = Sharding::kParameters}, 2},
          {"parameters, prefetch 0", {.sharding = Sharding::kParameters}, 0},
          {"parameters, no overlap", {.sharding = Sharding::kParameters}, 1, false},
          {"context", {}, 1, true, {}, ranks}};
}

struct Run {
  Run(const comm::Communicator& world, const data::TokenFile& tokens, Setup setup,
      const Variant& variant)
      : name(variant.name),
        grid(world, {.data = world.Size() / variant.context, .context = variant.context},
             variant.options) {
    setup.model.prefetch = variant.prefetch;
    setup.model.overlap = variant.overlap;
    setup.model.canonical = variant.canonical;
    if (variant.canonical.On()) setup.model.micro_batch = variant.canonical.leaf;
    trial = std::make_unique<Trial>(grid, tokens, setup);
  }
  const char* name;
  comm::ProcessGrid grid;
  std::unique_ptr<Trial> trial;
  std::vector<double> seconds;
};

void Print(const Run& run, double plain) {
  const double median = Median(run.seconds);
  std::string line = fmt::format("{:<26} {:8.3f} s/step  speed {:.3f} of the first's", run.name,
                                 median, plain / median);
  const parallel::ShardedUnits& units = run.trial->state.Net().Units();
  if (units.Gathers() > 0) {
    line += fmt::format(
        "  {:.0f}% of {} gathers complete when needed",
        100.0 * static_cast<double>(units.GathersReady()) / static_cast<double>(units.Gathers()),
        units.Gathers());
  }
  fmt::print("{}\n", line);
}

}  // namespace

int main(int argc, char** argv) {
  comm::Runtime runtime(&argc, &argv);
  return runtime.Guard([&] {
    const auto [model, steps] = ReadArguments(argc, argv, "trireme_sharding_benchmark");
    Setup setup = SetupOf(model);
    setup.model.micro_batch = model == "jsc" ? 128 : 4;
    const comm::Communicator& world = runtime.World();
    const data::TokenFile tokens(world, TokensFor(setup));
    std::vector<std::unique_ptr<Run>> runs;
    for (const Variant& variant : VariantsOf(world.Size())) {
      if (variant.canonical.On() && model != "jsc") continue;
      runs.push_back(std::make_unique<Run>(world, tokens, setup, variant));
    }
    for (int step = 0; step <= steps; ++step) {
      for (const auto& run : runs) {
        world.Barrier();
        const double start = Seconds();
        run->trial->step.Run(step);
        const double longest = world.Max(Seconds() - start);
        if (step > 0) run->seconds.push_back(longest);  // memory is touched for the first time
      }
    }
    if (!world.IsRoot()) return ExitCode::kDone;
    for (const auto& run : runs) Print(*run, Median(runs.front()->seconds));
    return ExitCode::kDone;
  });
}
