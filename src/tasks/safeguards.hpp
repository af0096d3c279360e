// A run's record of steps that went wrong, and which answers it allows. It is the same on every
// rank, because all decisions follow from agreed numbers.
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

  // Counts a step with a fault. Returns whether it is one too many in a row.
  bool TakeBadStep();
  // Takes the loss of a good step; returns the spike if it is one.
  std::optional<train::Spike> TakeLoss(double loss);

  std::int64_t BadSteps() const { return bad_steps_; }           // in the run so far
  std::int64_t BadStepsInARow() const { return bad_in_a_row_; }  // up to the last step
  std::int64_t MaxBadSteps() const { return options_.max_bad_steps; }

  // Step of the checkpoint to go back to: the last one that every run of this deck writes, so not
  // one written only because of a stop; nullopt before the first.
  std::optional<std::int64_t> GoesBackTo() const { return goes_back_to_; }
  void HaveWritten(std::int64_t step);  // such a checkpoint; repeated calls are harmless
  // Why a spike is not answered by going back: "run.on_spike = report"; empty: it is answered so.
  std::string WhyNot() const;
  // Goes back to a checkpoint: restores its record of losses and of bad steps in a row. The
  // following steps take the samples from `next_sample` on.
  void GoBack(const app::RunRecord& record, std::int64_t next_sample);

  // The object "safeguards" of run.json. stop_only: this checkpoint exists only because of a stop.
  nlohmann::json Json(bool stop_only) const;
  // Restores the record from a checkpoint. Throws InputError naming a faulty member.
  void Restore(const app::RunRecord& record);
  bool HasGoneBack() const { return rollbacks_ > 0; }
  // For the summary: "2 bad steps were skipped; 1 spike of the loss; ..."; empty: all went well.
  std::string Summary() const;

 private:
  // Samples skipped because the run went back to a step.
  struct Skipped {
    std::int64_t step = 0;  // steps completed at the checkpoint
    std::int64_t from = 0, to = 0;
  };
  void RestoreLosses(const app::RunRecord& record);

  const train::SafeguardOptions options_;
  train::LossWindow losses_;
  std::int64_t bad_in_a_row_ = 0;
  // Counts over the run so far, including steps that were later undone by going back.
  std::int64_t bad_steps_ = 0, spikes_ = 0, rollbacks_ = 0;
  std::optional<std::int64_t> goes_back_to_;
  std::int64_t rollbacks_to_it_ = 0;
  std::vector<Skipped> skipped_;
};

// Stragglers: the rank that computes longest among those with equal work.

struct Slowest {
  int rank = 0;        // world rank
  double seconds = 0;  // that it computed, per step
  double mean = 0;     // the same, mean over the ranks of its stage
};

// Collective over the grid. seconds: this rank's computation. Returns the rank that exceeds its
// pipeline stage's mean by the largest fraction, the lowest of equal ones.
Slowest SlowestRank(const comm::ProcessGrid& grid, double seconds);

}  // namespace trireme::tasks
