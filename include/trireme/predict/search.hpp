// Predictions of a step's time, and the search for the fastest layout that fits a machine.
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

// Times of a step, s, as in metrics.jsonl: means over the pipeline's stages.
struct Prediction {
  double step = 0;
  double compute = 0;
  std::array<double, comm::kGroups> exposed{};  // waits for transfers, by group
  double bubble = 0;                            // waits for other stages' results
  double other = 0;                             // the rest of the step
  double Exposed() const;                       // over all groups
  // Parts of `compute` on the stage that computes longest.
  double products = 0, attention = 0, passes = 0;
  double tokens_per_second = 0;    // all ranks together
  double utilisation = 0;          // model's operations, as a share of the products' peak
  std::int64_t micro_batches = 0;  // per data rank
  std::int64_t tasks = 0;          // tasks of the schedule, over all stages
  std::int64_t transfers = 0;      // transfers that the simulated ranks start
};

// Simulates a step of the plan on the machine. With many micro-batches, two shorter steps are
// simulated and the result is extrapolated. The plan's device must be the machine's.
Prediction Predict(const train::Plan& plan, const Machine& machine);

// Simulates the whole step and writes its timeline to `path` (device/trace_file.hpp), one process
// per stage. Throws RunError if it cannot be written.
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

// Deck keys and values of a layout; grid.data is left out: the program derives it.
std::vector<std::pair<std::string, std::string>> KeysOf(const Layout& layout);

struct Candidate {
  Layout layout;
  device::MemoryTerms memory;  // bytes, of the rank that needs most
  bool fits = true;            // it fits a rank's memory
  Prediction prediction;
  bool own = false;  // the deck's own layout
};

struct SearchResult {
  std::vector<Candidate> rows;  // the deck's own layout, if it states one; then the fastest first
  std::int64_t looked_at = 0;   // layouts that were estimated
  std::int64_t simulated = 0;
  std::string own_refused;  // why the deck's own layout is impossible; empty: it is possible
};

// The plan of the request with another layout. Throws InputError as train::MakePlan does.
train::Plan PlanWith(const train::Request& request, const Layout& layout);
Layout LayoutOf(const train::Plan& plan);

// Bytes of the rank that needs most memory, among one rank of each stage; if ranks own whole
// matrices, among all.
device::MemoryTerms LargestMemory(const train::Plan& plan);

// Layouts that fit, by predicted time. The `most` best by a quick estimate are simulated. own: true
// if the deck states a layout, which is then simulated, too.
SearchResult Search(const train::Request& request, const Machine& machine, bool own, int most);

}  // namespace trireme::predict
