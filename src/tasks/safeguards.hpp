// Memory of a run for steps that went wrong, and what it may answer. Every rank holds the same:
// all decisions follow from agreed numbers.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trireme/app/run_record.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/options.hpp"

namespace trireme::tasks {

class Safeguards {
 public:
  explicit Safeguards(const train::SafeguardOptions& options);

  // Counts a step with a fault. True: one too many in a row.
  bool TakeBadStep();
  // Takes the loss of a good step.
  std::optional<train::Spike> TakeLoss(double loss);

  std::int64_t BadSteps() const { return bad_steps_; }           // of the run so far
  std::int64_t BadStepsInARow() const { return bad_in_a_row_; }  // up to the last step
  std::int64_t MaxBadSteps() const { return options_.max_bad_steps; }

  // The checkpoint to go back to, by its step: the last one that every run of this deck writes, so
  // not one that only a stop wrote; none before the first.
  std::optional<std::int64_t> GoesBackTo() const { return goes_back_to_; }
  void HaveWritten(std::int64_t step);  // such a checkpoint; the same one may be told again
  // Why a spike is not answered by going back: "run.on_spike = report"; empty: it is.
  std::string WhyNot() const;
  // Goes back to a checkpoint: what it says about losses and bad steps in a row is true again, and
  // its run's steps will take the samples from `next_sample` on.
  void GoBack(const app::RunRecord& record, std::int64_t next_sample);

  // The object "safeguards" of run.json. stop_only: nothing but a stop wants this checkpoint.
  nlohmann::json Json(bool stop_only) const;
  // Goes on from a checkpoint. Throws InputError naming the member.
  void Restore(const app::RunRecord& record);
  bool HasGoneBack() const { return rollbacks_ > 0; }
  // "2 bad steps were skipped; 1 spike of the loss; ...": for the summary; empty: all went well.
  std::string Summary() const;

 private:
  // Samples left out by going back to a step, since the start of training.
  struct Skipped {
    std::int64_t step = 0;  // steps completed there
    std::int64_t from = 0, to = 0;
  };
  void RestoreLosses(const app::RunRecord& record);

  const train::SafeguardOptions options_;
  train::LossWindow losses_;
  std::int64_t bad_in_a_row_ = 0;
  // Counts of the run so far, with the steps that were gone back over.
  std::int64_t bad_steps_ = 0, spikes_ = 0, rollbacks_ = 0;
  std::optional<std::int64_t> goes_back_to_;
  std::int64_t rollbacks_to_it_ = 0;
  std::vector<Skipped> skipped_;
};

// Stragglers: the rank that computes longest, among those that have the same to compute.

struct Slowest {
  int rank = 0;        // of the world
  double seconds = 0;  // of computation
  double mean = 0;     // of the ranks of its pipeline stage
};

// Collective over the grid. seconds: of this rank. The rank whose excess over the mean of its
// pipeline stage is largest relative to it; the lowest of several.
Slowest SlowestRank(const comm::ProcessGrid& grid, double seconds);

}  // namespace trireme::tasks
