// The training loop, owned by the driver: steps, and between them reports, validations and
// checkpoints. Five objects hold what it needs for these (src/tasks/); the loop calls them in
// order.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "trireme/app/job.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

class BestLoss;
class CheckpointPolicy;
class Evaluations;
class Recovery;
class Reporter;
class RunSession;
class Safeguards;
class TrainingData;
struct Progress;

class TrainingLoop {
 public:
  // Collective. All arguments must outlive the loop, and the files of `corpus`. validation: of
  // app::ValidSplits. For encoder-decoders, `corpus` is the target texts.
  TrainingLoop(app::Job& job, const train::Plan& plan, const data::Corpus& corpus,
               std::span<const app::ValidSplit> validation, train::TrainingState& state,
               train::TrainingStep& training_step);
  ~TrainingLoop();
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  // Collective: run folder and its lock, state of the checkpoint to start from, monitor, banner.
  // roof_flops: the speed of products on a rank, FLOP/s. False when nothing is left to do.
  bool Initialize(double roof_flops);
  void Execute();  // collective: steps, validations and checkpoints up to the end or a stop
  const std::string& Folder() const;  // of the run
  ExitCode Finalize();  // collective: test perplexity and sample text of a whole run; summary
  // -v: everything is constructed; prints the banner with the memory plan, writes nothing.
  void Validate();

 private:
  // The start. All are collective.
  Safeguards FindStart();
  BestLoss BestSoFar() const;
  void LoadState();
  void OpenMonitor();
  void MakeCheckpoints();
  void MakeRecovery(const Safeguards& safeguards);
  void MakeEvaluations();

  // A step and what follows it. All are collective, but Ask.
  void FinishEarlierSession();
  train::StepResult RunStep();
  train::Requests Ask();
  void Record(const train::StepResult& result);
  void CheckpointIfDue();
  nlohmann::json RunJson() const;

  app::Job& job_;
  const train::Plan& plan_;
  const std::span<const app::ValidSplit> validation_;
  train::TrainingState& state_;
  train::TrainingStep& training_step_;
  const std::unique_ptr<TrainingData> data_;
  const std::unique_ptr<Progress> progress_;  // the objects below share it
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<CheckpointPolicy> checkpoints_;
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<Evaluations> evaluations_;
};

}  // namespace trireme::tasks
