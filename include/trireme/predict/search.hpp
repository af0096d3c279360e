// Search: layouts of a run that fit a machine, by predicted step time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/ledger.hpp"
#include "trireme/device/memory_terms.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::predict {

// Prediction: the time of a training step before it runs.

// Times are those of a step, s, as metrics.jsonl has them: means over the pipeline's stages.
struct Prediction {
  double step = 0;
  double compute = 0;
  std::array<double, comm::kGroups> exposed{};  // waits for transfers, by group
  double bubble = 0;                            // waits for other stages' results
  double other = 0;                             // the rest of the step
  double Exposed() const;                       // over all groups
  // Parts of `compute` on the stage that computes longest.
  double products = 0, attention = 0, passes = 0;
  double tokens_per_second = 0;    // of all ranks
  double utilisation = 0;          // model's operations over the peak of the precision's products
  std::int64_t micro_batches = 0;  // of a data rank
  std::int64_t tasks = 0;          // of the pipeline's schedule, over all stages
  std::int64_t transfers = 0;      // that the stages' ranks start
};

// Plays a step of the plan on the machine. With many micro-batches two shorter steps are played,
// and the rest goes on at the rate of their difference. The plan's device must be the machine's.
Prediction Predict(const train::Plan& plan, const Machine& machine);

// Plays the whole step, and writes its timeline to `path` (trace/trace_file.hpp), one process for
// each stage. RunError if it cannot be written.
void WriteTimeline(const train::Plan& plan, const Machine& machine, const std::string& path);

// The keys of a deck that make up a layout.
struct Layout {
  int data = 1, context = 1, tensor = 1, pipeline = 1;
  bool sequence_parallel = false;
  comm::Sharding sharding = comm::Sharding::kNone;
  int shard_group = 0;
  parallel::ScheduleKind schedule = parallel::ScheduleKind::kOneForwardOneBackward;
  int chunks = 1;
  std::int64_t micro_batch = 1;
  model::Recompute recompute = model::Recompute::kNone;
  bool operator==(const Layout&) const = default;
};

// Keys and values as a deck or a command line has them; data is left to the program.
std::vector<std::pair<std::string, std::string>> KeysOf(const Layout& layout);

struct Candidate {
  Layout layout;
  device::MemoryTerms memory;  // bytes of the rank with most
  bool fits = true;            // the memory of a rank
  Prediction prediction;
  bool own = false;  // the deck's
};

struct SearchResult {
  std::vector<Candidate> rows;  // fastest first; the deck's own, if it states a layout, first
  std::int64_t looked_at = 0;   // layouts that the grid allows
  std::int64_t simulated = 0;
  std::string own_refused;  // why the deck's own layout cannot be; empty: it can
};

// The plan of the deck on `request.ranks` ranks with another layout. Throws InputError as
// train::MakePlan does.
train::Plan PlanWith(const train::Request& request, const Layout& layout);
Layout LayoutOf(const train::Plan& plan);

// Memory of the rank of a plan that needs most, among one of each stage. Bytes.
device::MemoryTerms LargestMemory(const train::Plan& plan);

// Layouts that fit, by predicted time. Those that a quick estimate puts first are simulated, `most`
// of them. own: the deck states a layout.
SearchResult Search(const train::Request& request, const Machine& machine, bool own, int most);

}  // namespace trireme::predict
