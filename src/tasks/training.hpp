// What the objects of the training loop share: the run's progress, and the data it trains on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/app/batch_job.hpp"
#include "trireme/app/job.hpp"
#include "trireme/base/json.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

// Whether something that happens every `every` steps happens after this step; never if every is 0.
constexpr bool Comes(std::int64_t step, std::int64_t every) {
  return every > 0 && step % every == 0;
}

// The run's progress, the same on all ranks except where noted.
struct Progress {
  std::int64_t last = 0;                   // step at which the schedule ends
  app::Deadline deadline;                  // end of the batch job; rank 0's answers decide
  std::function<void(comm::Phase)> watch;  // sets the watchdog's bound for what follows

  std::int64_t step = 0;         // steps completed
  std::int64_t first = 0;        // step at which this session began
  double step_seconds = 0;       // duration of the last step
  bool stop = false;             // agreed by all ranks: a signal or a time limit
  std::string stop_reason = {};  // on rank 0
  bool checkpoint_now = false;   // agreed by all ranks: a checkpoint is due by time
  bool validation_due = false;   // a stop postponed this step's validation

  bool Finished() const { return step >= last; }
  bool Ends() const { return Finished() || stop; }  // this step is the session's last
};

// The training data, as described in the banner, the records and run.json.
class TrainingData {
 public:
  // All arguments must outlive it. For encoder-decoders, `corpus` is the target texts.
  TrainingData(const data::Options& options, const train::TrainingPlan& plan,
               const data::Corpus& corpus, const train::TrainingStep& step);

  const data::TokenFile& Tokens() const { return corpus_.First(); }  // for vocabulary, valid, test
  const data::PairFile* Pairs() const { return step_.FileOfPairs(); }  // null: trains on windows
  const train::StepLoader& Order() const { return step_.Data(); }   // order of the steps' batches
  const data::Sampler& Samples() const { return step_.Samples(); }  // samples windows
  double Epoch(std::int64_t step) const { return Order().Epochs(step); }

  // Files of the training for run.json; empty if there never was a mixture.
  std::vector<data::MixtureFile> Files() const;
  // Batch for run.json: the deck's number of windows, or the largest number of pairs in a step.
  std::int64_t Batch() const { return Pairs() == nullptr ? options_.batch : plan_.Batch(); }
  // Targets of all steps before this one, if the batch grows; else 0.
  std::int64_t TokensOfRamp(std::int64_t step) const {
    return plan_.options.samples.ramp.steps > 0 ? Order().TargetsBefore(step) : 0;
  }
  // Members of run.json about the data at a step.
  nlohmann::json Json(std::int64_t step) const;
  // "wikitext2.h5: 2,088,628 / 217,646 / 245,569 tokens; 65,270 windows of 32, ..."
  std::string Describe() const;
  // A mixture's files, each with the number of its targets trained on; empty without a mixture.
  std::vector<std::pair<std::string, std::int64_t>> TokensOfSources(std::int64_t step) const;
  // "sources books.h5 123,456 tokens (70.0%), 1.50 epochs; code.h5 ..."; empty without a mixture.
  std::string SourceSummary(std::int64_t step) const;
  // Floating-point operations per token of step `step` (from 0). Document masks reduce the keys
  // that queries see; for pairs, padding is included.
  double FlopsPerToken(std::int64_t step, const train::StepResult& result) const;

 private:
  std::string DescribePairs() const;

  const data::Options& options_;
  const train::TrainingPlan& plan_;
  const data::Corpus corpus_;
  const train::TrainingStep& step_;
  const nlohmann::json vocabulary_;
};

class RunSession;

// What the objects of the training loop share. Everything referred to must outlive them.
struct LoopParts {
  app::Job& job;
  const train::Plan& plan;
  const TrainingData& data;
  train::TrainingState& state;
  train::TrainingStep& step;
  Progress& progress;
  const RunSession* session = nullptr;          // set once the run folder is found
  std::optional<report::Monitor> monitor = {};  // opened before any object uses it
};

// Members of run.json about the model, the deck and the hardware.
nlohmann::json DescribeRun(const app::Request& request, const app::Ranks& ranks,
                           const app::Device& device, const model::ModelPlan& model,
                           const comm::ProcessGrid& grid);

// Settings that must not change if results are to have the same bits; "none" without run.canonical.
std::string DescribeCanonical(const parallel::Canonical& canonical, const char* precision);

}  // namespace trireme::tasks
