// Reporter: everything that a training reports: banner, records, TensorBoard, timeline, summary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run_session.hpp"
#include "step_prediction.hpp"
#include "timeline.hpp"
#include "training.hpp"
#include "trireme/app/job.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/report/tensorboard.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

// Stragglers: the rank that computes longest among those with equal work.
struct Slowest {
  int rank = 0;        // world rank
  double seconds = 0;  // of its computation, per step
  double mean = 0;     // the same, mean over the ranks of its stage
};

// Collective over the grid. seconds: this rank's computation. Returns the rank that exceeds its
// pipeline stage's mean by the largest fraction, the lowest of equal ones.
Slowest SlowestRank(const comm::ProcessGrid& grid, double seconds);

class Reporter {
 public:
  // Collective. `loop` must outlive it; all functions need its session and its monitor.
  explicit Reporter(LoopParts& loop);

  // The start: call these in this order.

  void MeterEnergy() { energy_.emplace(loop_.job.ranks, loop_.job.device); }  // collective
  // Collective. Prints the banner; opens the files of TensorBoard and of the timeline. roof_flops:
  // measured speed of matrix products per rank, FLOP/s.
  void Begin(double roof_flops);
  // -v: prints only the banner with the memory plan, and the warnings.
  void ShowPlan();
  void SayStart();  // prints where the session continues, and warnings
  // Reports changes that a resume allows but that alter numbers compared with an undisturbed run.
  // run: run.json as this session would write it now.
  void SayChanges(const app::RunRecord& record, const nlohmann::json& run,
                  const app::Decider& decider);
  void SayMixed(const std::string& mixed);  // mixed: text on processors that differ; empty: none do
  void BeginSteps();                        // collective: session totals count from here

  // A step: call these before it, with its result, and after all that follows it.

  void BeginStep();  // collective
  // Collective at the end of an interval. bad_steps: in the run so far; checkpoint_seconds: time
  // that training waited for checkpoints since the last record.
  void Step(const train::StepResult& result, std::int64_t bad_steps, double checkpoint_seconds);
  void AddHistograms();  // collective: weights after the step, and its gradients
  void EndStep() { timeline_->EndStep(loop_.progress.step); }
  void Interrupt() { timeline_->Interrupt(); }  // collective: the run goes back to a checkpoint

  // Collective. Sets the record's step, epoch, tokens and memory.
  void Place(report::Record& record) const;

  // The end of the session.

  // Collective. Call it before the test, so that only the steps' transfers count.
  report::Summary SummarySoFar();
  // Facts from other objects for the last record and the summary.
  struct Ending {
    bool ended = false;  // the run is complete
    std::int64_t bad_steps = 0;
    double checkpoint_seconds = 0;   // that training waited since the last record
    std::int64_t writer_bytes = 0;   // memory of a rank that writes the node's checkpoints
    std::vector<std::string> lines;  // printed at the end; empty ones are left out
  };
  void Done(const Ending& ending, report::Summary summary);  // collective
  void SayStopped();

 private:
  void SayEvent(const std::string& event, const std::string& text);
  void SayInput();
  void SayOtherData(const app::RunRecord& record, const nlohmann::json& run);
  bool MeetsGpus() const;
  report::BannerFacts Banner() const;
  void PlanMemory(report::BannerFacts& facts) const;
  void AttachTensorBoard(const report::BannerFacts& banner);
  const std::string& HostOf(int rank) const { return loop_.job.ranks.Hosts().Of(rank); }
  void FindMemory(report::Record& record) const;
  void FindSlowest(report::Record& record);
  void AskForHistograms();
  std::vector<report::NamedHistogram> HistogramsOf(const checkpoint::State& state,
                                                   const char* prefix, double divisor) const;
  void FindRanks(std::int64_t writer_bytes, report::Summary& summary) const;
  std::vector<report::TrafficRow> GatherTraffic() const;
  report::Gathers MeanGathers() const;
  report::RunFacts Facts() const;
  void ComparePrediction(bool ended, report::Summary& summary);

  LoopParts& loop_;
  const comm::ProcessGrid& grid_;
  StepPrediction prediction_;
  std::optional<EnergyUse> energy_;
  std::shared_ptr<report::EventLog> events_;  // on rank 0; null without TensorBoard
  // Gradients of the current step, on rank 0; empty elsewhere, or if none were requested.
  std::vector<report::NamedHistogram> gradient_histograms_;
  std::optional<Timeline> timeline_;
  std::string started_;    // start of this session, ISO 8601
  double roof_flops_ = 0;  // per rank, measured at the start
  double last_loss_ = 0;   // loss of the last step, nats per token
  // On this rank, in this session's steps: gathers of sharded parameters, and those that were
  // complete when needed. *_before_: totals, with validations, before the current step.
  std::int64_t gathers_ = 0, gathers_ready_ = 0, gathers_before_ = 0, ready_before_ = 0;
  // This rank's computation: seconds and steps since the last record; seconds in this session.
  double window_compute_ = 0;
  std::int64_t window_steps_ = 0;
  double own_compute_ = 0;
};

}  // namespace trireme::tasks
