// TrainingLoop: where a run begins or goes on, and in which folder.
#include <fmt/format.h>
#include <filesystem>
#include <utility>

#include "checkpoints.hpp"
#include "safeguards.hpp"
#include "step_prediction.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/hf/weights.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/training_loop.hpp"
#include "trireme/train/replica_check.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::tasks {

namespace {

namespace fs = std::filesystem;

// runs/a/checkpoints/step_00000100 -> runs/a; empty for a checkpoint that lies elsewhere.
std::string RunFolderOf(const std::string& checkpoint) {
  const fs::path parent = fs::absolute(checkpoint).lexically_normal().parent_path();
  if (parent.filename() != "checkpoints") return {};
  const std::string folder = parent.parent_path().string();
  const std::string near = fs::path(folder).lexically_proximate(fs::current_path()).string();
  return near.starts_with("..") ? folder : near;  // short in messages where it can be
}

bool SameFolder(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

// Finds the folder of the results. -r continues in the checkpoint's own run folder; another
// job.output given by the user begins a branch there. Changes nothing on disk.
void TrainingLoop::FindFolder() {
  const comm::Communicator& world = job_.World();
  const std::string& resume = job_.line->resume;
  world.Together([&] {
    if (job_.start.weights_alone || job_.options.checkpoint.start_from.empty()) return;
    throw job_.deck.Complain("checkpoint.start_from", "begins a new run, but -r continues one",
                             "Give one of them.");
  });
  folder_ = job_.options.job.output;
  if (!job_.start.candidates.empty()) checkpoint_ = job_.start.candidates.front();
  if (resume.empty()) return;
  const std::string owner = Resumes() ? RunFolderOf(checkpoint_) : WithoutSlash(resume);
  const bool branch = job_.options.job.output_given && !SameFolder(folder_, owner);
  continues_ = !owner.empty() && !branch;
  if (continues_) folder_ = owner;
}

// Rank 0. From here on no other job writes into the folder.
void TrainingLoop::LockFolder() {
  report::CheckRunFolder(folder_, continues_);
  std::error_code ignored;
  const bool is_new = !fs::exists(folder_, ignored);
  report::MakeRunFolder(folder_);
  lock_ = std::make_unique<app::RunLock>(folder_, app::ReadBatchJob(), is_new);
  // Another job's last act may have come between the first look and the lock: PrepareRunFolder
  // looks again.
  if (!continues_ || !Resumes()) return;
  const auto known = job_.start.damaged.size();
  const std::vector<std::string> now = checkpoint::Locate(job_.line->resume).candidates;
  if (now.size() > known && now[known] == checkpoint_) return;
  throw InputError(
      fmt::format("{}: another job has written or removed a checkpoint meanwhile", folder_),
      "Start again.");
}

void TrainingLoop::ReadState() {
  const comm::Communicator& world = job_.World();
  if (job_.start.record) {
    world.Together([&] {
      if (world.IsRoot()) app::CheckVocabulary(*job_.start.record, tokens_);
    });
    if (job_.start.local != nullptr) return ResumeLocal();
    checkpoint_ = app::ReadNewest(job_, [this](const std::string& checkpoint) {
      if (job_.start.weights_alone) {
        state_.LoadWeights(checkpoint, [this] { app::StopIfAsked(job_); });
      } else {
        Resume(checkpoint);
      }
    });
  }
}

void TrainingLoop::LoadState() {
  ReadState();
  app::StopIfAsked(job_);
}

// The step of the checkpoint, before anything else of it is read.
void TrainingLoop::FindStep() {
  if (!Resumes()) return;
  step_ = job_.start.record->step;
  TakeBest(*job_.start.record);
  validation_due_ = job_.start.record->validation_due;
  job_.World().Together([&] { safeguards_->Restore(*job_.start.record); });
}

bool TrainingLoop::HasEnded() const {
  const comm::Communicator& world = job_.World();
  bool ended = false;  // the last record is there
  world.Together([&] {
    if (Finished() && world.IsRoot()) ended = !continues_ || report::HasEnded(folder_);
  });
  ended = world.Max(ended ? std::int64_t{1} : 0) == 1;
  if (!Finished() || !ended) return false;
  if (world.IsRoot()) {
    fmt::print("{}: step {} is the schedule's end already: nothing is left to do\n", checkpoint_,
               report::WithThousands(step_));
  }
  return true;
}

bool TrainingLoop::Initialize(double roof_flops) {
  roof_flops_ = roof_flops;
  started_ = report::UtcNow();
  const comm::Communicator& world = job_.World();
  const std::string mixed = train::CheckProcessors(
      grid_, job_.stream.OnGpu() ? job_.gpu->Context().name : device::InstructionSet(),
      [this] { return train::UpdateBits(state_); }, job_.runtime->Hosts());
  FindFolder();
  FindStep();
  if (HasEnded()) return false;
  const auto lock = [&] {
    world.Together([&] {
      if (world.IsRoot()) LockFolder();
    });
  };
  // A new folder is made once nothing more can be refused.
  if (continues_) lock();
  LoadState();
  if (!continues_) lock();
  WatchFolder();
  world.Together([&] {
    vocabulary_ = app::VocabularyJson(tokens_);
    if (world.IsRoot()) {
      SetDamagedAside();
      CountStart();
      report::PrepareRunFolder(folder_, continues_, job_.deck.Resolved());
      // A branch of an imported run is exported as that is.
      if (!continues_ && Resumes()) hf::CopyRunPart(RunFolderOf(checkpoint_), folder_);
    }
  });
  world.Together([&] {
    monitor_ = std::make_unique<report::Monitor>(
        report::Session{.root = world.IsRoot(),
                        .host = job_.runtime->Hosts().First(),
                        .folder = folder_,
                        .every_steps = job_.options.monitor.every_steps,
                        .total_steps = schedule_.Last(),
                        .has_stages = grid_.Shape().pipeline > 1,
                        .resumed = continues_,
                        .resume_step = step_,
                        .best_after = decider_.since});
  });
  MakeCheckpoints();
  MakeLocal();
  energy_ = std::make_unique<EnergyUse>(job_);
  first_step_ = step_;
  replicas_ = std::make_unique<train::ReplicaCheck>(state_);
  const report::BannerFacts banner = Banner();
  monitor_->Banner(banner);
  AttachTensorBoard(banner);
  MakeTimeline();
  SayStart();
  if (!mixed.empty()) {
    monitor_->Warn(mixed);
    SayEvent("mixed processors", mixed);
  }
  return true;
}

void TrainingLoop::SetDamagedAside() {
  if (!continues_ || !Resumes()) return;
  for (const std::string& damaged : job_.start.damaged) {
    job_.start.passed_over.push_back(
        fmt::format("{}: it is called {} now", damaged, checkpoint::SetAside(damaged)));
  }
}

// Rank 0. A state that ends every session that starts from it must not do so for ever.
// A branch that ends before its first checkpoint must not begin at step 0: the note tells of it.
void TrainingLoop::CountStart() {
  if (!continues_) {
    app::ForgetStarts(folder_);
    if (step_ > 0) app::CountStart(folder_, step_);
    return;
  }
  const std::int64_t most = job_.options.checkpoint.max_restarts;
  starts_here_ = app::CountStart(folder_, step_);
  if (most == 0 || starts_here_ <= most) return;
  throw RunError(
      fmt::format("{}: start {} in a row at step {}, without a checkpoint in between", folder_,
                  starts_here_, report::WithThousands(step_)),
      "Find out what ends the run there. checkpoint.max_restarts = 0 sets no limit; removing "
      "restarts.json there begins the count anew.");
}

// Rank 0. Throws if the lock is lost; if `certain`, also if it cannot be read just now.
void TrainingLoop::HoldLock(bool certain) const {
  if (lock_ == nullptr) return;
  std::string why;
  const app::RunLock::Standing standing = lock_->Look(&why);
  if (standing == app::RunLock::Standing::kMine) return;
  if (standing == app::RunLock::Standing::kUnknown) {
    if (!certain) return;
    throw RunError(why, "Nothing is written without it: another job may have taken the run over.");
  }
  std::error_code ignored;
  if (!fs::exists(folder_, ignored)) {
    throw RunError(folder_ + ": the run folder was removed or moved while the run went on",
                   "This job ends: its checkpoints were there. Put the folder back and continue "
                   "with -r, or begin anew.");
  }
  throw RunError(fmt::format("{}: its run.lock is not this job's any more", folder_),
                 "Another job has taken the run over, or someone has removed the lock. This job "
                 "ends, and writes no more into the folder.");
}

void TrainingLoop::SayEvent(const std::string& event, const std::string& text) {
  monitor_->Happened({.name = event, .step = step_, .text = text});
}

void TrainingLoop::SayStart() {
  if (lock_ != nullptr && !lock_->TakenFrom().empty()) {
    monitor_->Line("took the run over: " + lock_->TakenFrom());
    SayEvent("lock taken over", lock_->TakenFrom());
  }
  for (const tools::Warning& warning : job_.preflight.warnings) {
    SayEvent("preflight", warning.kind + ": " + warning.text);
  }
  if (const std::string line = app::StagingLine(job_); !line.empty()) monitor_->Line(line);
  for (const std::string& odd : train::Oddities(plan_)) monitor_->Warn(odd);
  for (const std::string& warning : job_.start.warnings) monitor_->Warn(warning);
  for (const std::string& passed_over : job_.start.passed_over) {
    monitor_->Warn("passed over " + passed_over);
    SayEvent("checkpoint passed over", passed_over);
  }
  if (continues_ && !Resumes()) {
    monitor_->Line(fmt::format("{} holds no checkpoint yet: it begins at step 0", folder_));
  }
  if (continues_) SayEvent("restart", fmt::format("start {} at this step", starts_here_));
  if (!Resumes()) return;
  monitor_->Line(fmt::format("{} {} at step {}", continues_ ? "resumed from" : report::kBranchedOff,
                             DescribeStart(), report::WithThousands(step_)));
  if (!continues_) SayEvent(report::kBranchedOff, DescribeStart());
  SayChanges();
}

// Changes that a resume allows, but after which numbers differ from those of an undisturbed run.
void TrainingLoop::SayChanges() {
  const app::RunRecord& record = *job_.start.record;
  const nlohmann::json run = RunJson();
  for (const std::string& change : app::Changes(record, run)) monitor_->Warn(change);
  const std::string layout = app::LayoutChange(record, run);
  if (!layout.empty()) SayEvent("layout", layout);
  const std::string decider = app::DeciderChange(record, decider_);
  if (!decider.empty()) monitor_->Warn(decider);
  if (pairs_ != nullptr) return SayOtherBatches(run);
  const data::Sampler::Options& now = plan_.training.samples;
  const bool windows = record.length.value_or(now.length) != now.length ||
                       record.stride.value_or(now.stride) != now.stride;
  if (!windows) return;
  monitor_->Warn(
      fmt::format("the windows are others: epoch {} goes on at the same fraction of them, and "
                  "repeats or leaves out some of its targets; later epochs are whole",
                  static_cast<std::int64_t>(Epoch()) + 1));
}

// Settings that must stay as they are for the same bits; "none" without run.canonical.
std::string TrainingLoop::DescribeCanonical() const {
  const parallel::Canonical& canonical = plan_.training.model.canonical;
  if (!canonical.On()) return "none";
  return fmt::format("{}x{}, leaf {}, {}, {}", canonical.data_groups, canonical.slices,
                     canonical.leaf, job_.Precision(), device::InstructionSet());
}

// A canonical run that was promised the same bits cannot get them with other arithmetic.
void TrainingLoop::CheckCanonical() const {
  const std::string now = DescribeCanonical();
  const std::string& recorded = job_.start.record->canonical;
  const std::string was = recorded.empty() ? "none" : recorded;
  if (was == now || was == "none" || now == "none") return;
  throw AgreedError(ExitCode::kBadInput,
                    fmt::format("{}: it was written by canonical arithmetic {}, this run has {}: "
                                "the bits would not be the same",
                                checkpoint_, was, now),
                    "Continue with the same run.canonical, run.canonical_leaf, run.precision and "
                    "instruction set, or with run.canonical = none.");
}

// The algorithms of the matrix products that the run began with, on the same kind of card, and the
// scales of fp8 products: others would round otherwise.
void TrainingLoop::ResumeProducts() {
  if (job_.libraries == nullptr) return;
  const app::RunRecord& record = *job_.start.record;
  const bool scaled = job_.libraries->SetScales(job_.stream, record.fp8_scales);
  if (record.products.empty()) return;
  const bool taken = job_.libraries->Adopt({record.products});
  if (taken && (scaled || !job_.stream.fp8)) job_.libraries->Seal();
}

void TrainingLoop::Resume(const std::string& checkpoint) {
  CheckCanonical();
  ResumeProducts();
  state_.Load(checkpoint, [this] { app::StopIfAsked(job_); });
}

void TrainingLoop::Validate() {
  FindFolder();
  FindStep();
  job_.World().Together([&] {
    if (job_.World().IsRoot()) report::CheckRunFolder(folder_, continues_);
  });
  LoadState();
  report::Session session;  // no folder: the screen only
  session.root = job_.World().IsRoot();
  report::Monitor screen(session);
  screen.Banner(Banner());
  if (const std::string line = app::StagingLine(job_); !line.empty()) screen.Line(line);
  for (const std::string& odd : train::Oddities(plan_)) screen.Warn(odd);
  for (const std::string& warning : job_.start.warnings) screen.Warn(warning);
  for (const std::string& passed_over : job_.start.passed_over) {
    screen.Warn("passed over " + passed_over);
  }
  screen.Line("valid: everything was constructed; nothing was written");
}

// A trained model for the tasks that do not train.

namespace {

// Whether every node has the memory that its ranks plan.
bool Fits(const app::Job& job, const train::EvaluationPlan& plan) {
  device::MemoryTerms memory;
  job.World().Together([&] { memory = train::PlanMemory(plan, job.World().Rank()); });
  return app::HasMemory(job, memory);
}

void Pack(const app::Job& job, PackWeights packing, train::EvaluationPlan& plan) {
  if (packing == PackWeights::kNo) return;
  if (!train::CanPackWeights(plan)) {
    if (packing == PackWeights::kAuto) return;
    job.World().Together([&] {
      throw job.deck.Complain("generate.pack_weights", "there is none here",
                              "It serves 2 to 32 texts at once (generate.file, generate.batch) on "
                              "CPUs in fp32 or fp64, without run.canonical, grid.context and "
                              "grid.sharding = parameters: leave it out.");
    });
  }
  plan.model.thin_panels = true;
  if (packing == PackWeights::kAuto) plan.model.thin_panels = Fits(job, plan);
}

train::EvaluationPlan MakePlan(const app::Job& job, std::int64_t micro_batch,
                               std::int64_t cache_slots, PackWeights packing) {
  job.World().Together([&] {
    if (!job.start.candidates.empty()) return;
    throw job.deck.Complain("job.task", "a trained model is needed",
                            "Name a run folder or a checkpoint with -r.");
  });
  const train::TokenFacts facts = app::InspectTokens(job);
  train::EvaluationPlan plan;
  job.World().Together([&] {
    plan = train::MakeEvaluationPlan(app::RequestOf(job, facts), micro_batch, cache_slots);
  });
  Pack(job, packing, plan);
  return plan;
}

}  // namespace

TrainedModel::TrainedModel(const app::Job& job, std::int64_t micro_batch, std::int64_t cache_slots,
                           PackWeights packing)
    : plan_(MakePlan(job, micro_batch, cache_slots, packing)),
      grid_(job.World(), plan_.grid, plan_.sharing) {
  device::MemoryTerms memory;
  job.World().Together([&] { memory = train::PlanMemory(plan_, job.World().Rank()); });
  app::CheckMemory(job, memory, grid_);
  job.World().Together([&] { train::CheckTransfers(plan_, job.World().Rank()); });
  app::UseGpu(job, memory, grid_);
  if (plan_.tokens.pairs) {
    pairs_.emplace(app::OpenPairs(job));
  } else {
    tokens_.emplace(app::OpenTokens(job, grid_));
  }
  job.World().Together([&] {
    if (job.World().IsRoot()) app::CheckVocabulary(*job.start.record, Tokens());
  });
  // Without a rehearsal: the library's proposals, the same in every run.
  if (job.libraries != nullptr) job.libraries->Seal();
  model_ = std::make_unique<model::ParallelModel>(grid_, plan_.model, job.stream);
  job.World().Together([&] {
    if (job.libraries != nullptr) job.libraries->Reserve(train::LargestOperand(plan_.model));
  });
  std::optional<train::StateOnHost> weights;
  job.World().Together([&] { weights.emplace(model_->Stream(), model_->Blocks()); });
  checkpoint_ = app::ReadNewest(job, [&](const std::string& checkpoint) {
    checkpoint::ReadTensors(job.World(), checkpoint, "model", *weights);
  });
  weights->Store();
  if (plan_.model.thin_panels) model_->Local().PackWeights();
}

}  // namespace trireme::tasks
