// The training loop, owned by the driver: steps, validations, checkpoints, reports.
#ifndef TRIREME_DRIVER_TRAINING_LOOP_HPP_
#define TRIREME_DRIVER_TRAINING_LOOP_HPP_

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/job/job.hpp"
#include "trireme/monitor/monitor.hpp"
#include "trireme/plan/plan.hpp"
#include "trireme/training/training_step.hpp"

namespace trireme::driver {

class TrainingLoop {
 public:
  // All arguments must outlive the loop.
  TrainingLoop(job::Job& job, const plan::Plan& plan, const data::TokenFile& tokens,
               training::TrainingState& state, training::TrainingStep& training_step);

  // Collective: checkpoint to start from, run folder, monitor, banner. False when nothing is left
  // to do.
  bool Initialize();
  ExitCode Execute();  // collective: steps, validations and checkpoints up to the end or a stop
  void Finalize();     // collective: test perplexity and sample text of a whole run; summary
  // -v: everything is constructed; prints the banner with the memory plan, writes nothing.
  void Validate();

 private:
  training::Requests MyRequests() const;  // signals and clocks of this rank
  void Report(const training::StepResult& result);

  void FindStart();
  std::string DescribeCanonical() const;
  void CheckCanonical() const;
  void ResumeProducts();
  void Resume();
  void WarnOfChanges();
  void PrintSample();
  monitor::BannerFacts Banner() const;  // collective
  void PlanMemory(monitor::BannerFacts& facts) const;
  std::vector<monitor::TrafficRow> GatherTraffic() const;  // collective
  monitor::Gathers MeanGathers() const;                    // collective
  training::StepResult RunStep();                          // collective
  void ValidateIfDue();
  void CheckpointIfDue();
  void WriteCheckpoint(bool best);
  void RecordEvaluation(data::Split split);
  std::int64_t PeakMemory() const;  // collective
  double Epoch() const;
  bool Finished() const { return step_ >= schedule_.Last(); }

  job::Job& job_;
  const data::TokenFile& tokens_;
  const plan::Plan& plan_;
  training::TrainingState& state_;
  training::TrainingStep& training_step_;
  const comm::ProcessGrid& grid_;
  const data::Sampler& sampler_;
  const optimizer::Schedule& schedule_;
  std::unique_ptr<monitor::Monitor> monitor_;

  std::string folder_;      // of the run
  std::string checkpoint_;  // that -r named, or empty
  nlohmann::json run_;      // its run.json
  bool continues_ = false;  // in the checkpoint's own run folder
  std::int64_t step_ = 0;   // steps completed
  double best_loss_ = std::numeric_limits<double>::infinity();  // validation, nats per token
  bool best_is_new_ = false;
  bool stop_ = false;  // agreed: a signal or the walltime
  std::string stop_reason_;
  bool checkpoint_now_ = false;      // agreed: checkpoint.every_minutes has passed
  double last_loss_ = 0;             // of the last step, nats per token
  double last_checkpoint_time_ = 0;  // of Seconds()
  double checkpoint_seconds_ = 0;    // since the last report
  double roof_flops_ = 0;            // per rank, measured at start
  // Gathers of sharded parameters on this rank in the steps of this session, and those complete
  // when needed.
  std::int64_t gathers_ = 0, gathers_ready_ = 0;
};

}  // namespace trireme::driver

#endif  // TRIREME_DRIVER_TRAINING_LOOP_HPP_
