// Times training steps with and without a timeline, in turn: the ratio of each pair, in the layouts
// of a job's ranks. usage: mpirun -n RANKS trireme_trace_benchmark jsc|gpt12 [STEPS] threads:
// OMP_NUM_THREADS.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "models.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/device/recorder.hpp"

namespace {

using namespace trireme;
using namespace trireme::benchmark;

struct Layout {
  const char* name;
  comm::GridShape grid;
};

std::vector<Layout> LayoutsOf(int ranks) {
  if (ranks == 1) return {{"one process", {}}};
  return {
      {"data", {.data = ranks}}, {"tensor", {.tensor = ranks}}, {"pipeline", {.pipeline = ranks}}};
}

void Measure(const comm::Communicator& world, const data::TokenFile& tokens, const Setup& setup,
             const Layout& layout, int pairs) {
  constexpr std::int64_t kSlices = std::int64_t{1} << 17;
  const comm::ProcessGrid grid(world, layout.grid);
  Trial trial(grid, tokens, setup);
  int step = 0;
  std::int64_t slices = 0;
  const auto seconds_of = [&](bool traced) {
    world.Barrier();
    device::Recorder recorder(kSlices, setup.stream);
    if (traced) grid.TraceInto(&recorder);
    const double start = Seconds();
    trial.step.Run(step++);
    const double longest = world.Max(Seconds() - start);
    grid.TraceInto(nullptr);
    if (traced) slices = std::ssize(recorder.Slices());
    return longest;
  };
  seconds_of(false);  // memory is touched for the first time
  seconds_of(true);
  std::vector<double> ratios, control, off;
  for (int pair = 0; pair < pairs; ++pair) {
    const bool first = pair % 2 == 0;  // in turn, so that a drift of the machine cancels
    const double one = seconds_of(first), other = seconds_of(!first), third = seconds_of(false);
    const double on = first ? one : other, without = first ? other : one;
    ratios.push_back(on / without);
    control.push_back(third / without);
    off.push_back(without);
  }
  if (!world.IsRoot()) return;
  fmt::print(
      "{:<12} {:8.2f} ms a step, {:5} slices of rank 0: on / off {:.4f}, off / off {:.4f}, medians "
      "of {}\n",
      layout.name, 1e3 * Median(off), slices, Median(ratios), Median(control), pairs);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  comm::Runtime runtime(&argc, &argv);
  return runtime.Guard([&] {
    const auto [model, steps] = ReadArguments(argc, argv, "trireme_trace_benchmark");
    const Setup setup = SetupOf(model);
    const data::TokenFile tokens(runtime.World(), TokensFor(setup));
    for (const Layout& layout : LayoutsOf(runtime.World().Size())) {
      Measure(runtime.World(), tokens, setup, layout, steps);
    }
    return ExitCode::kDone;
  });
}
