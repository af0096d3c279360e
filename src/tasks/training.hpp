// What the objects of the training loop share: where the run stands, and the data it trains on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/app/batch_job.hpp"
#include "trireme/app/job.hpp"
#include "trireme/base/json.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

// Whether something that happens every so many steps comes after this one; 0: it never does.
constexpr bool Comes(std::int64_t step, std::int64_t every) {
  return every > 0 && step % every == 0;
}

// Where a run stands: the same on all ranks, unless a comment says otherwise.
struct Progress {
  std::int64_t last = 0;                   // step at which the schedule ends
  app::Deadline deadline;                  // of the batch job; its answers count on rank 0
  std::function<void(comm::Phase)> watch;  // sets the watchdog's bound for what follows

  std::int64_t step = 0;         // steps completed
  std::int64_t first = 0;        // where this session began
  double step_seconds = 0;       // that the last step took
  bool stop = false;             // agreed: a signal or a time limit
  std::string stop_reason = {};  // on rank 0
  bool checkpoint_now = false;   // agreed: a checkpoint is due by time
  bool validation_due = false;  // the one of this step is still to come: a stop did not wait for it

  bool Finished() const { return step >= last; }
  bool Ends() const { return Finished() || stop; }  // the session, with this step
};

// The data of a training, as the banner, the records and run.json name it.
class TrainingData {
 public:
  // All must outlive it. With pairs, the corpus holds the target texts.
  TrainingData(const data::Options& options, const train::TrainingPlan& plan,
               const data::Corpus& corpus, const train::TrainingStep& step);

  const data::TokenFile& Tokens() const { return corpus_.First(); }    // vocabulary, valid, test
  const data::PairFile* Pairs() const { return step_.FileOfPairs(); }  // null: windows
  const train::StepLoader& Order() const { return step_.Data(); }      // of the steps' batches
  const data::Sampler& Samples() const { return step_.Samples(); }     // of windows
  double Epoch(std::int64_t step) const { return Order().Epochs(step); }

  // Files of the training as run.json names them; empty: one file that was never part of a mixture.
  std::vector<data::MixtureFile> Files() const;
  // The batch that run.json names: windows as the deck asks for them, or the most pairs of a step.
  std::int64_t Batch() const { return Pairs() == nullptr ? options_.batch : plan_.Batch(); }
  // run.json's members about the data at a step.
  nlohmann::json Json(std::int64_t step) const;
  // "wikitext2.h5: 2,088,628 / 217,646 / 245,569 tokens; 65,270 windows of 32, ..."
  std::string Describe() const;
  // Names of a mixture's files and the valid targets seen of each; empty without a mixture.
  std::vector<std::pair<std::string, std::int64_t>> TokensOfSources(std::int64_t step) const;
  // "sources books.h5 123,456 tokens (70.0%), 1.50 epochs; code.h5 ..."; empty without a mixture.
  std::string SourceSummary(std::int64_t step) const;
  // Floating-point operations for each token of step number `step` (from 0), with this result. With
  // document masks its queries saw fewer keys; pairs count with their padding.
  double FlopsPerToken(std::int64_t step, const train::StepResult& result) const;

 private:
  std::string DescribePairs() const;

  const data::Options& options_;
  const train::TrainingPlan& plan_;
  const data::Corpus corpus_;
  const train::TrainingStep& step_;
  const nlohmann::json vocabulary_;
};

// run.json's members about the model, the deck and what computes.
nlohmann::json DescribeRun(const app::Request& request, const app::Ranks& ranks,
                           const app::Device& device, const model::ModelPlan& model,
                           const comm::ProcessGrid& grid);

// Settings that must stay as they are for the same bits; "none" without run.canonical.
std::string DescribeCanonical(const parallel::Canonical& canonical, const char* precision);

}  // namespace trireme::tasks
