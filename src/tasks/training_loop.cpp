// job.task = train: the set-up, and the training loop with its start, its steps and its end.
#include <fmt/format.h>
#include <algorithm>

#include "checkpoint_policy.hpp"
#include "evaluations.hpp"
#include "recovery.hpp"
#include "reporter.hpp"
#include "run_session.hpp"
#include "training.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/replica_check.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

namespace {

// Five objects hold what the loop needs between steps; the loop calls them in order.
class TrainingLoop {
 public:
  // Collective. All arguments, and the files of `corpus`, must outlive the loop. validation: from
  // app::ValidSplits. For encoder-decoders, `corpus` is the target texts.
  TrainingLoop(app::Job& job, const train::Plan& plan, const data::Corpus& corpus,
               std::span<const app::ValidSplit> validation, train::TrainingState& state,
               train::TrainingStep& training_step)
      : validation_(validation),
        data_(job.request.data, plan.training, corpus, training_step),
        progress_{.last = plan.training.options.schedule.Last(),
                  .deadline =
                      app::Deadline(app::ReadBatchJob().end_unix_seconds, UnixSeconds(), Seconds()),
                  .watch = {}},
        loop_{job, plan, data_, state, training_step, progress_},
        reporter_(loop_) {
    progress_.watch = [this](comm::Phase phase) {
      const std::int64_t step = progress_.step + (phase == comm::Phase::kStep ? 1 : 0);
      const double stated = loop_.job.request.machine.hang_timeout;
      loop_.job.ranks.Watch().Arm(phase, step, app::HangBound(phase, stated, progress_.deadline));
    };
  }

  // Collective. Finds and locks the run folder, loads the checkpoint's state if there is one, opens
  // the monitor and prints the banner. roof_flops: measured speed of matrix products per rank,
  // FLOP/s. Returns false if nothing is left to do.
  bool Initialize(double roof_flops) {
    const std::string mixed = train::CheckProcessors(
        loop_.state.Grid(),
        loop_.job.device.stream.OnGpu() ? loop_.job.device.gpu->Context().name
                                        : device::InstructionSet(),
        [this] { return train::UpdateBits(loop_.state); }, loop_.job.ranks.Hosts());
    const Safeguards safeguards = FindStart();
    if (session_->HasEnded(progress_)) return false;
    // A new folder is made last, when nothing can refuse the run any more.
    if (session_->Continues()) session_->Lock();
    LoadState();
    if (!session_->Continues()) session_->Lock();
    session_->RecordHangs(loop_.job.ranks.Watch());
    session_->Begin(progress_.step);
    OpenMonitor();
    MakeCheckpoints();
    reporter_.MeterEnergy();
    MakeRecovery(safeguards);
    MakeEvaluations();
    reporter_.Begin(roof_flops);
    reporter_.SayStart();
    if (session_->Resumes()) {
      reporter_.SayChanges(session_->Record(), RunJson(), checkpoints_->Best().Decider());
    }
    reporter_.SayMixed(mixed);
    return true;
  }

  // Collective. Runs steps, validations and checkpoints until the end or a stop.
  void Execute() {
    reporter_.BeginSteps();
    FinishEarlierSession();
    while (!progress_.Ends()) {
      const train::StepResult result = RunStep();
      if (result.fault) recovery_->AnswerFault(*result.fault);
      evaluations_->Expect(result);
      reporter_.Step(result, recovery_->BadSteps(), checkpoints_->TakeSeconds());
      reporter_.AddHistograms();
      checkpoints_->Advance(result.requests.busy);
      if (recovery_->GoesBack(result)) {
        if (progress_.stop) checkpoints_->Write({.stop_only = true});
        continue;
      }
      evaluations_->ValidateIfDue();
      CheckpointIfDue();
      reporter_.EndStep();
    }
  }

  const std::string& Folder() const { return session_->Folder(); }  // the run folder

  // Collective. If the run is finished, evaluates the test split and prints a sample text. Then
  // prints the summary.
  ExitCode Finalize() {
    report::Summary summary = reporter_.SummarySoFar();
    const bool ended = progress_.Finished() && !progress_.validation_due && evaluations_->Test();
    progress_.watch(comm::Phase::kEnd);
    if (ended) evaluations_->PrintSample();
    Reporter::Ending ending{.ended = ended,
                            .bad_steps = recovery_->BadSteps(),
                            .checkpoint_seconds = checkpoints_->TakeSeconds(),
                            .writer_bytes = checkpoints_->OwnBytes(),
                            .lines = checkpoints_->Summary()};
    for (const std::string& line : recovery_->Summary()) ending.lines.push_back(line);
    reporter_.Done(ending, std::move(summary));
    if (!ended) {
      reporter_.SayStopped();
      return ExitCode::kStopped;
    }
    checkpoints_->RemoveLocal();
    return ExitCode::kDone;
  }

  // -v: loads the state, prints the banner with the memory plan, writes nothing.
  ExitCode Validate() {
    FindStart();
    session_->CheckFolder();
    LoadState();
    report::Session session;  // without a folder, it prints but writes no files
    session.root = loop_.job.ranks.World().IsRoot();
    loop_.monitor.emplace(session);
    reporter_.ShowPlan();
    return ExitCode::kDone;
  }

 private:
  // The start, then a step and what follows it. All but BestSoFar, Ask and RunJson are collective.

  // Finds the run folder; takes the step and the record of bad steps from the checkpoint.
  Safeguards FindStart() {
    session_ = std::make_unique<RunSession>(loop_.job);
    loop_.session = session_.get();
    Safeguards safeguards(loop_.job.request.training);
    if (!session_->Resumes()) return safeguards;
    const app::RunRecord& record = session_->Record();
    progress_.step = progress_.first = record.step;
    progress_.validation_due = record.validation_due;
    session_->CheckRates(loop_.plan);
    loop_.job.ranks.World().Together([&] { safeguards.Restore(record); });
    return safeguards;
  }

  BestLoss BestSoFar() const {
    const app::ValidSplit& deciding = validation_.front();
    BestLoss best({.set = deciding.name,
                   .sha256 = deciding.tokens->SourceSha256(),
                   .tokens = deciding.tokens->Size(data::Split::kValid),
                   .windows = loop_.job.request.monitor.validate_windows});
    if (session_->Resumes()) best.Take(session_->Record());
    return best;
  }

  void LoadState() {
    const std::string canonical =
        DescribeCanonical(loop_.plan.training.model.canonical, loop_.job.device.Precision());
    session_->Load(loop_.job.device, data_.Tokens(), canonical, loop_.state);
  }

  // Targets of the whole run, if its batches grow. A deck may end it before the step at which it
  // goes on.
  std::int64_t TotalTokens() const {
    return data_.TokensOfRamp(std::max(progress_.last, progress_.step));
  }

  void OpenMonitor() {
    loop_.job.ranks.World().Together([&] {
      loop_.monitor.emplace(report::Session{.root = loop_.job.ranks.World().IsRoot(),
                                            .host = loop_.job.ranks.Hosts().First(),
                                            .folder = session_->Folder(),
                                            .every_steps = loop_.job.request.monitor.every_steps,
                                            .total_steps = progress_.last,
                                            .total_tokens = TotalTokens(),
                                            .has_stages = loop_.plan.grid.pipeline > 1,
                                            .resumed = session_->Continues(),
                                            .resume_step = progress_.step,
                                            .best_after = BestSoFar().Decider().since});
    });
  }

  void MakeCheckpoints() {
    const auto run = [this](bool stop_only) {
      nlohmann::json json = RunJson();
      json["safeguards"] = recovery_->Json(stop_only);
      json["date"] = app::DateNow(loop_.job.ranks.World());
      return json;
    };
    const auto written = [this](std::int64_t step) { recovery_->HaveWritten(step); };
    checkpoints_ = std::make_unique<CheckpointPolicy>(loop_, BestSoFar(), run, written);
  }

  void MakeRecovery(const Safeguards& safeguards) {
    const auto returning = [this](const app::RunRecord& record) {
      reporter_.Interrupt();
      if (loop_.job.device.libraries != nullptr)
        loop_.job.device.libraries->SetScales(loop_.job.device.stream, record.fp8_scales);
    };
    recovery_ = std::make_unique<Recovery>(loop_, *checkpoints_, safeguards, returning);
  }

  void MakeEvaluations() {
    const auto place = [this](report::Record& record) {
      reporter_.Place(record);
      record.bad_steps = recovery_->BadSteps();
    };
    evaluations_ = std::make_unique<Evaluations>(loop_, validation_, checkpoints_->Best(), place);
  }

  // Does what the previous session was due to do after its last step, but did not.
  void FinishEarlierSession() {
    const bool completed = checkpoints_->CompleteRunFolder();
    if (progress_.validation_due) {
      evaluations_->ValidateIfDue();
      CheckpointIfDue();
    } else if (!completed && session_->StartsFromLocal() && progress_.Finished()) {
      CheckpointIfDue();  // the run folder has no checkpoint of the last step
    }
  }

  train::StepResult RunStep() {
    if (!loop_.job.device.placement.numbers.empty())
      device::PinThreads(loop_.job.device.placement.numbers);
    progress_.watch(comm::Phase::kStep);
    reporter_.BeginStep();
    const train::StepResult result = loop_.step.Run(progress_.step, Ask(), train::OnFault::kSkip);
    ++progress_.step;
    progress_.stop = result.requests.signal || result.requests.walltime;
    if (result.requests.signal) progress_.stop_reason = "a signal";
    progress_.checkpoint_now = result.requests.checkpoint;
    progress_.step_seconds = result.times.total;
    progress_.deadline.Step(result.times.total);
    return result;
  }

  // What this rank's signals and clocks ask for. Where clocks differ, rank 0's decides.
  train::Requests Ask() {
    train::Requests mine;
    mine.signal = loop_.job.ranks.signals->Received();
    mine.busy = checkpoints_->Busy();
    if (!loop_.job.ranks.World().IsRoot()) return mine;
    const double now = Seconds();
    const double minutes = loop_.plan.training.options.schedule.walltime_minutes;
    if (minutes > 0 && (now - loop_.job.request.begun) / 60 >= minutes) {
      mine.walltime = true;
      progress_.stop_reason = "schedule.walltime_minutes";
    } else if (progress_.deadline.MustStop(now + progress_.step_seconds, evaluations_->IsNear())) {
      // A stop takes effect after this step; otherwise a validation and another step follow.
      mine.walltime = true;
      progress_.stop_reason =
          fmt::format("the end of the job's time, {:.0f} s away", progress_.deadline.Left(now));
    }
    mine.checkpoint = checkpoints_->TimeHasCome();
    return mine;
  }

  void CheckpointIfDue() {
    const auto reason = checkpoints_->Due();
    if (!reason) return;
    progress_.watch(comm::Phase::kCheckpoint);  // longer bound: the whole state is compared
    if (!recovery_->ReplicasDiffer()) {
      checkpoints_->Write(*reason);
    } else if (progress_.stop) {  // at a stop, save the state just restored
      checkpoints_->Write({.stop_only = true});
    }
  }

  // Makes run.json without the date, the sequence number and the record of steps gone wrong.
  nlohmann::json RunJson() const {
    nlohmann::json run = DescribeRun(loop_.job.request, loop_.job.ranks, loop_.job.device,
                                     loop_.plan.training.model, loop_.state.Grid());
    run["step"] = progress_.step;
    run["schedule_steps"] = loop_.plan.training.options.schedule.steps;
    run.update(data_.Json(progress_.step));
    checkpoints_->AddTo(run);
    if (progress_.validation_due) run["validation_due"] = true;
    if (recovery_->HasGoneBack()) {
      const train::Schedule& schedule = loop_.plan.training.options.schedule;
      run["planned"] = {{"epochs", schedule.epochs},
                        {"steps", schedule.steps},
                        {"batch_ramp", schedule.batch_ramp},
                        {"batch_start", schedule.batch_start}};
    }
    return run;
  }

  const std::span<const app::ValidSplit> validation_;
  const TrainingData data_;
  Progress progress_;
  std::unique_ptr<RunSession> session_;
  LoopParts loop_;  // the objects below share it
  Reporter reporter_;
  std::unique_ptr<CheckpointPolicy> checkpoints_;
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<Evaluations> evaluations_;
};

}  // namespace

ExitCode RunTraining(app::Job& job) {
  const app::Request& request = job.request;
  const app::Device& device = job.device;
  const comm::Communicator& world = job.ranks.World();
  app::ArmSetUp(*job.ranks.runtime, request.machine.hang_timeout);

  // 1. The plan: which rank computes what, and what that costs.
  const train::TokenFacts facts = app::InspectTokens(request, job.ranks, job.files);
  train::Plan plan;
  world.Together(
      [&] { plan = train::MakePlan(app::RequestOf(request, world, device, job.start, facts)); });

  // 2. The groups of ranks, and the check of the memory that the plan needs.
  comm::ProcessGrid grid(world, plan.grid, plan.sharing);
  device::MemoryTerms memory;
  world.Together([&] { memory = train::PlanMemory(plan, world.Rank()); });
  app::CheckMemory(request, job.ranks, device, memory, grid);
  world.Together([&] { train::CheckTransfers(plan, world.Rank()); });
  if (plan.training.model.canonical.On()) train::CheckInstructionSets(world);
  app::UseGpu(request, device, memory, grid);
  const std::function<void()> stop_if_asked = [&job] { app::StopIfAsked(job.ranks); };
  stop_if_asked();

  // 3. The highest speed of matrix products, measured while memory is still free.
  double roof_flops = device.roof_flops;
  if (!request.line.validate_only && roof_flops == 0) {
    world.Together([&] { roof_flops = kernels::MeasureRoof(device.stream, device.dtype); });
  }

  // 4. The data. For encoder-decoders, the corpus is the target texts.
  std::optional<data::PairFile> pairs;
  std::vector<data::TokenFile> files;
  std::vector<app::ValidationSet> sets;
  if (facts.pairs) {
    pairs.emplace(app::OpenPairs(request, job.ranks));
  } else {
    files = app::OpenCorpus(request, job.ranks, job.files, grid);
    sets = app::OpenValidation(request, job.ranks, job.files, grid);
  }
  const data::Corpus corpus(pairs ? std::span(&pairs->Of(data::Side::kTarget), 1)
                                  : std::span<const data::TokenFile>(files));
  const std::vector<app::ValidSplit> validation = app::ValidSplits(corpus.First(), sets);
  if (!pairs) app::RequireTargets(request, world, corpus.First(), validation);

  // 5. The model with initial weights, distributed over the grid; the optimizer; the training step.
  train::TrainingState state(grid, plan.training, device.stream, stop_if_asked);
  train::TrainingStep step =
      pairs ? train::TrainingStep(state, *pairs) : train::TrainingStep(state, corpus);

  // 6. The loop.
  TrainingLoop loop(job, plan, corpus, validation, state, step);
  if (request.line.validate_only) return loop.Validate();
  stop_if_asked();
  if (!loop.Initialize(roof_flops)) return ExitCode::kDone;
  loop.Execute();
  const ExitCode code = loop.Finalize();
  if (code == ExitCode::kDone) job.ended_run = loop.Folder();
  return code;
}

}  // namespace trireme::tasks
