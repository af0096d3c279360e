// The training loop and its reports.
#include "trireme/tasks/training_loop.hpp"

#include <fmt/format.h>

#include <utility>

#include "checkpoints.hpp"
#include "energy_use.hpp"
#include "local_checkpoints.hpp"
#include "printable.hpp"
#include "safeguards.hpp"
#include "step_prediction.hpp"
#include "stragglers.hpp"
#include "timeline.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/app/hang_bound.hpp"
#include "trireme/report/page.hpp"

namespace trireme::tasks {

TrainingLoop::TrainingLoop(app::Job& job, const train::Plan& plan, const data::Corpus& corpus,
                           std::span<const app::ValidSplit> validation,
                           train::TrainingState& state, train::TrainingStep& training_step)
    : job_(job),
      corpus_(corpus),
      validation_(validation),
      tokens_(corpus.First()),
      plan_(plan),
      state_(state),
      training_step_(training_step),
      grid_(state.Grid()),
      pairs_(training_step.FileOfPairs()),
      order_(training_step.Data()),
      schedule_(plan.training.schedule),
      prediction_(std::make_unique<StepPrediction>(job, plan)),
      safeguards_(std::make_unique<Safeguards>(job.options.training)),
      deadline_(app::ReadBatchJob().end_unix_seconds, UnixSeconds(), Seconds()) {
  const app::ValidSplit& deciding = validation.front();
  decider_.set = deciding.name;
  decider_.sha256 = deciding.tokens->SourceSha256();
  decider_.tokens = deciding.tokens->Size(data::Split::kValid);
  decider_.windows = job.options.monitor.validate_windows;
}

TrainingLoop::~TrainingLoop() = default;

void TrainingLoop::Execute() {
  energy_->Begin();
  grid_.Traffic().Clear();
  const bool completed = CompleteRunFolder();
  if (validation_due_) {
    ValidateIfDue();
    CheckpointIfDue();
  } else if (!completed && job_.start.local != nullptr && Finished()) {
    CheckpointIfDue();  // the run folder has none of the last step
  }
  while (!Finished() && !stop_) {
    const train::StepResult result = RunStep();
    ++step_;
    stop_ = result.requests.signal || result.requests.walltime;
    if (result.requests.signal) stop_reason_ = "a signal";
    checkpoint_now_ = result.requests.checkpoint;
    last_step_seconds_ = result.times.total;
    deadline_.Step(result.times.total);
    if (result.fault) AnswerFault(*result.fault);
    // Forward passes alone: a step of so many targets takes longer.
    deadline_.ExpectValidation(result.times.total * static_cast<double>(ValidationTokens()) /
                               static_cast<double>(result.tokens));
    Report(result);
    AddHistograms();
    checkpoints_->Advance(result.requests.busy);
    AccountForCheckpoints();
    const std::int64_t every = job_.options.checkpoint.check_replicas_every;
    const bool went_back = (!result.fault && AnswerSpike(result.loss)) ||
                           (every > 0 && step_ % every == 0 && ReplicasDiffer(false));
    if (went_back) {
      if (stop_) WriteCheckpoint(false, true);
      continue;
    }
    ValidateIfDue();
    CheckpointIfDue();
    timeline_->EndStep(step_);
  }
}

// A step, with what it gathered counted: validations gather too.
train::StepResult TrainingLoop::RunStep() {
  if (!job_.placement.numbers.empty()) device::PinThreads(job_.placement.numbers);
  const parallel::ShardedUnits& units = state_.Net().Units();
  const std::int64_t gathers = units.Gathers(), ready = units.GathersReady();
  Watch(comm::Phase::kStep, step_ + 1);
  AskForHistograms();
  timeline_->BeginStep(step_ + 1);
  const train::StepResult result =
      training_step_.Run(step_, MyRequests(), train::OnFault::kSkip);
  gathers_ += units.Gathers() - gathers;
  gathers_ready_ += units.GathersReady() - ready;
  return result;
}

train::Requests TrainingLoop::MyRequests() {
  train::Requests mine;
  mine.signal = job_.signals->Received();
  mine.busy = checkpoints_->Busy();
  if (!job_.World().IsRoot()) return mine;  // rank 0's clock decides
  const double now = Seconds();
  if (schedule_.walltime_minutes > 0 &&
      (now - job_.start_seconds) / 60 >= schedule_.walltime_minutes) {
    mine.walltime = true;
    stop_reason_ = "schedule.walltime_minutes";
  } else if (deadline_.MustStop(now + last_step_seconds_, ValidationIsNear())) {
    // A stop comes at this step's end; without one, a validation and another step follow.
    mine.walltime = true;
    stop_reason_ = fmt::format("the end of the job's time, {:.0f} s away", deadline_.Left(now));
  }
  mine.checkpoint = local_ != nullptr ? local_->TimeHasCome() : checkpoints_->TimeHasCome();
  return mine;
}

// A validation comes after the step that begins or after the next one.
bool TrainingLoop::ValidationIsNear() const {
  const std::int64_t every = job_.options.monitor.validate_every_steps;
  return every > 0 && ((step_ + 1) % every == 0 || (step_ + 2) % every == 0);
}

double TrainingLoop::Epoch() const { return order_.Epochs(step_); }

void TrainingLoop::Report(const train::StepResult& result) {
  const double tokens = static_cast<double>(result.tokens);
  report::Record record;
  record.kind = report::Record::Kind::kStep;
  record.step = step_;
  record.epoch = Epoch();
  record.tokens = order_.TargetsBefore(step_);
  record.loss = last_loss_ = result.loss;
  record.no_target = result.fault && result.fault->no_target;
  record.learning_rate = result.learning_rate;
  record.grad_norm = result.gradient_norm;
  record.step_seconds = result.times.total;
  record.tokens_per_second = tokens / result.times.total;
  record.flops_per_second = tokens * FlopsPerToken(result) / result.times.total;
  record.roof_fraction =
      record.flops_per_second / (roof_flops_ * static_cast<double>(job_.World().Size()));
  record.seconds_compute = result.times.compute;
  record.seconds_exposed_communication = result.times.exposed_communication;
  record.seconds_bubble = result.times.bubble;
  record.seconds_data = result.times.data;
  record.seconds_checkpoint = std::exchange(checkpoint_seconds_, 0);
  record.bad_steps = safeguards_->BadSteps();
  record.sources = TokensOfSources();
  const std::int64_t every = job_.options.monitor.every_steps;
  window_compute_ += result.own_compute;
  own_compute_ += result.own_compute;
  ++window_steps_;
  energy_->Count(result.tokens);
  // The peak of the largest rank takes a collective: only for records that are kept.
  if (step_ == 1 || step_ % every == 0 || Finished() || stop_) {
    FindMemory(record);
    FindSlowest(record);
    record.more = energy_->EndInterval();
    record.ends_interval = true;
  }
  monitor_->Step(record);
}

void TrainingLoop::Watch(comm::Phase phase, std::int64_t step) const {
  job_.runtime->Watch().Arm(phase, step,
                            app::HangBound(phase, job_.options.machine.hang_timeout, deadline_));
}

// The folder is this job's now.
void TrainingLoop::WatchFolder() const {
  job_.runtime->Watch().WriteInto(folder_);
  job_.runtime->Watch().OnVerdict([folder = folder_](const comm::HangReport& report) {
    report::RecordEvent(folder, {.name = "hang",
                                  .step = report.step,
                                  .rank = report.rank,
                                  .host = report.host,
                                  .text = report.text});
  });
}

// The slowest rank since the last record; a line if it costs the others much.
void TrainingLoop::FindSlowest(report::Record& record) {
  constexpr double kMuch = 0.2;       // of its stage's mean
  constexpr double kManySeconds = 1;  // that the others lost in the window
  const double steps = static_cast<double>(std::exchange(window_steps_, 0));
  const Slowest slowest = SlowestRank(grid_, std::exchange(window_compute_, 0) / steps);
  record.slowest_rank = slowest.rank;
  record.slowest_host = HostOf(slowest.rank);
  record.seconds_slowest = slowest.seconds;
  const double lost = slowest.seconds - slowest.mean;
  if (lost < kMuch * slowest.mean || lost * steps < kManySeconds) return;
  const std::string text =
      fmt::format("rank {} on {} computes {:.3g} s a step, {:.0f}% more than the mean of its stage",
                  slowest.rank, record.slowest_host, slowest.seconds, 100 * lost / slowest.mean);
  monitor_->Line("slowest: " + text);
  monitor_->Happened({.name = "straggler",
                      .step = step_,
                      .rank = slowest.rank,
                      .host = record.slowest_host,
                      .text = text,
                      .numbers = {{"seconds", slowest.seconds}, {"mean_seconds", slowest.mean}}});
}

ExitCode TrainingLoop::Finalize() {
  timeline_->End("the run ended");
  report::Summary summary = SummarySoFar();
  if (timeline_->Written()) summary.files.emplace_back("timeline", folder_ + "/trace.json.gz");
  bool ended = Finished() && !validation_due_;
  if (ended && job_.options.monitor.validate_every_steps > 0) {
    ended = RecordTest();
  }
  Watch(comm::Phase::kEnd, step_);
  if (ended) PrintSample();
  report::Record record;
  record.kind = report::Record::Kind::kDone;
  record.ended = ended;
  record.step = step_;
  record.epoch = Epoch();
  record.tokens = order_.TargetsBefore(step_);
  record.loss = last_loss_;
  FindMemory(record);
  record.seconds_checkpoint = checkpoint_seconds_;
  record.bad_steps = safeguards_->BadSteps();
  record.sources = TokensOfSources();
  if (!ended) summary.reason = stop_reason_;
  FindRanks(summary);
  ComparePrediction(ended, summary);
  summary.energy = energy_->EndSession();
  record.more = summary.energy.numbers;
  const std::string energy = EnergyLine(summary.energy);
  const std::string comparison = report::ComparisonText(summary.comparison);
  monitor_->Done(record, std::move(summary));
  for (const std::string& line :
       {comparison, energy, SourceSummary(), checkpoints_->Summary(),
        local_ != nullptr ? local_->Summary() : "", safeguards_->Summary(), ReplicaSummary()}) {
    if (!line.empty()) monitor_->Line(line);
  }
  if (ended && local_ != nullptr) local_->RemoveAll();
  if (ended) return ExitCode::kDone;
  SayEvent("stop", stop_reason_);
  if (job_.options.monitor.report) {
    monitor_->Line("page    of what there is: " + report::PageCommandText(folder_));
  }
  monitor_->Line(
      fmt::format("stopped by {} after step {}; checkpoint written: run it again with -r {}",
                  stop_reason_, report::WithThousands(step_), folder_));
  return ExitCode::kStopped;
}

void TrainingLoop::PrintSample() {
  const std::int64_t count = job_.options.monitor.sample_tokens;
  if (count == 0 || pairs_ != nullptr) return;
  const GenerateOptions options{.prompt = {},
                                .tokens = count,
                                .temperature = 0.8,
                                .top_k = 0,
                                .top_p = 0.95,
                                .seed = plan_.training.model.seed};
  const auto eos = static_cast<std::int32_t>(tokens_.Words().eos);
  const std::vector<std::int32_t> added = ContinueOnce(state_.Net(), {eos}, options);
  if (job_.World().IsRoot()) monitor_->Sample(step_, Printable(tokens_.Decode(added)));
}

}  // namespace trireme::tasks
