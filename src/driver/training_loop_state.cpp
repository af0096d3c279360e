// TrainingLoop: start, resume, banner and checkpoints of a run.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <set>

#include "trireme/base/clock.hpp"
#include "trireme/base/version.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/driver/training_loop.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/machine/roof.hpp"

namespace trireme::driver {

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

}  // namespace

// Finds the start of the run and the folder of its results. -r continues in the checkpoint's own
// run folder; another job.output given by the user begins a branch there. Changes nothing on disk.
void TrainingLoop::FindStart() {
  const comm::Communicator& world = job_.World();
  const std::string& start_from = job_.options.checkpoint.start_from;
  folder_ = job_.options.job.output;
  world.Together([&] {
    if (job_.line->resume.empty() || start_from.empty()) return;
    throw job_.deck.Complain("checkpoint.start_from", "begins a new run, but -r continues one",
                             "Give one of them.");
  });
  if (!job_.line->resume.empty()) {
    checkpoint_ = checkpoint::Find(world, job_.line->resume);
    run_ = checkpoint::ReadRun(world, checkpoint_);
    Resume();
    const std::string owner = RunFolderOf(checkpoint_);
    const bool branch = job_.options.job.output_given && !SameFolder(folder_, owner);
    continues_ = !owner.empty() && !branch;
    if (continues_) folder_ = owner;
  } else if (!start_from.empty()) {
    state_.LoadWeights(checkpoint::Find(world, start_from));
  }
  world.Together([&] {
    if (world.IsRoot()) monitor::CheckRunFolder(folder_, continues_);
  });
  world.Together([&] { roof_flops_ = machine::MeasureRoof(job_.stream, job_.dtype); });
}

bool TrainingLoop::Initialize() {
  const comm::Communicator& world = job_.World();
  FindStart();
  if (Finished()) {
    if (world.IsRoot()) {
      fmt::print("{}: step {} is the schedule's end already: nothing is left to do\n", checkpoint_,
                 monitor::WithThousands(step_));
    }
    return false;
  }
  world.Together([&] {
    if (world.IsRoot()) monitor::PrepareRunFolder(folder_, continues_, job_.deck.Resolved());
  });
  world.Together([&] {
    monitor_ = std::make_unique<monitor::Monitor>(
        monitor::Session{.root = world.IsRoot(),
                         .folder = folder_,
                         .every_steps = job_.options.monitor.every_steps,
                         .total_steps = schedule_.Last(),
                         .has_stages = grid_.Shape().pipeline > 1,
                         .resumed = continues_,
                         .resume_step = step_});
  });
  monitor_->Banner(Banner());
  if (checkpoint_.empty()) return true;
  monitor_->Line(fmt::format("{} {} at step {}", continues_ ? "resumed from" : "branched off",
                             checkpoint_, monitor::WithThousands(step_)));
  WarnOfChanges();
  return true;
}

// Everything that must stay as it is for the same bits; "none" without run.canonical.
std::string TrainingLoop::DescribeCanonical() const {
  const parallel::Canonical& canonical = plan_.training.model.canonical;
  if (!canonical.On()) return "none";
  return fmt::format("{}x{}, leaf {}, {}, {}", canonical.data_groups, canonical.slices,
                     canonical.leaf, job_.Precision(), device::InstructionSet());
}

// A canonical run that was promised the same bits cannot get them with other arithmetic.
void TrainingLoop::CheckCanonical() const {
  const std::string now = DescribeCanonical();
  const auto found = run_.find("canonical");
  const std::string was = found == run_.end() ? "none" : found->get<std::string>();
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
  std::vector<float> scales;
  if (run_.contains("fp8_scales")) scales = run_.at("fp8_scales").get<std::vector<float>>();
  const bool scaled = job_.libraries->SetScales(job_.stream, scales);
  if (!run_.contains("products")) return;
  const bool taken = job_.libraries->Adopt({run_.at("products").get<std::string>()});
  if (taken && (scaled || !job_.stream.fp8)) job_.libraries->Seal();
}

void TrainingLoop::Resume() {
  CheckCanonical();
  ResumeProducts();
  state_.Load(checkpoint_);
  // Every rank parsed the same file: what is wrong with it, all throw together.
  try {
    step_ = run_.at("step").get<std::int64_t>();
    if (run_.contains("best_loss")) best_loss_ = run_.at("best_loss").get<double>();
  } catch (const nlohmann::json::exception& error) {
    throw AgreedError(ExitCode::kBadInput,
                      fmt::format("{}/run.json: {}", checkpoint_, error.what()));
  }
}

// Warns of changes that a resume allows, but after which numbers differ from an uninterrupted
// run's.
void TrainingLoop::WarnOfChanges() {
  const auto compare = [&](const char* key, const nlohmann::json& now) {
    if (!run_.contains(key) || run_.at(key) == now) return;
    monitor_->Warn(fmt::format("{} is {} now and was {} when the checkpoint was written", key,
                               now.dump(), run_.at(key).dump()));
  };
  compare("seed", plan_.training.model.seed);
  compare("source_sha256", tokens_.SourceSha256());
  compare("sequence_length", plan_.training.model.length);
  compare("stride", plan_.training.samples.stride);
  compare("batch", plan_.training.samples.batch);
  compare("precision", job_.Precision());
  compare("canonical", DescribeCanonical());
}

// Stages and slices differ in size: the plan of the rank that needs most decides what fits.
void TrainingLoop::PlanMemory(monitor::BannerFacts& facts) const {
  if (!job_.World().IsRoot()) return;
  const std::vector<plan::RankKind> kinds = plan::PlanKinds(plan_);
  const machine::MemoryTerms& most = kinds.front().memory;
  facts.memory_differs = kinds.back().memory.Total() < most.Total();
  for (const machine::MemoryTerm& term : machine::kMemoryTerms) {
    if (most.*term.bytes > 0) facts.memory.emplace_back(term.name, most.*term.bytes);
  }
}

monitor::BannerFacts TrainingLoop::Banner() const {
  const auto& hosts = job_.runtime->Hosts();
  monitor::BannerFacts facts;
  facts.version = Version();
  facts.commit = Commit();
  facts.ranks = job_.World().Size();
  facts.hosts = static_cast<int>(std::set<std::string>(hosts.begin(), hosts.end()).size());
  facts.threads = job_.stream.threads;
  facts.pinned = job_.placement.pinned;
  facts.device =
      fmt::format("{} ({})", device::NameOf(job_.stream.Where()),
                  job_.stream.OnGpu() ? job_.gpu->Context().name : device::InstructionSet());
  facts.precision = job_.Precision();
  facts.grid = plan::DescribeLayout(plan_.grid, plan_.sharing, plan_.training.model);
  facts.ranks_map = comm::RankMap(grid_.Shape(), hosts);
  facts.model = plan::DescribeModel(plan_.training.model.options);
  facts.data = fmt::format("{}: {} / {} / {} tokens; {} windows of {}, {} an epoch",
                           fs::path(tokens_.Path()).filename().string(),
                           monitor::WithThousands(tokens_.Size(data::Split::kTrain)),
                           monitor::WithThousands(tokens_.Size(data::Split::kValid)),
                           monitor::WithThousands(tokens_.Size(data::Split::kTest)),
                           monitor::WithThousands(sampler_.Windows()), plan_.training.model.length,
                           monitor::Counted(sampler_.StepsPerEpoch(), "step"));
  PlanMemory(facts);
  facts.roof_flops = roof_flops_;
  return facts;
}

void TrainingLoop::Validate() {
  FindStart();
  monitor::Session session;  // no folder: the screen only
  session.root = job_.World().IsRoot();
  monitor::Monitor screen(session);
  screen.Banner(Banner());
  screen.Line("valid: everything was constructed; nothing was written");
}

void TrainingLoop::WriteCheckpoint(bool best) {
  const double start = Seconds();
  checkpoint::Contents contents;
  const training::StateOnHost model = state_.ModelBlocks(), moments = state_.OptimizerBlocks();
  contents.model = model.Blocks();
  contents.optimizer = moments.Blocks();
  contents.run = {
      {"format", 1},
      {"step", step_},
      {"epoch", Epoch()},
      {"next_sample", step_ / sampler_.StepsPerEpoch() * sampler_.Windows() +
                          step_ % sampler_.StepsPerEpoch() * plan_.training.samples.batch},
      {"tokens", sampler_.TargetsBefore(step_)},
      {"seed", plan_.training.model.seed},
      {"source_sha256", tokens_.SourceSha256()},
      {"sequence_length", plan_.training.model.length},
      {"stride", plan_.training.samples.stride},
      {"batch", plan_.training.samples.batch},
      {"precision", job_.Precision()},
      {"deck", job_.deck.Resolved()},
      {"trireme", Version()},
      {"commit", Commit()},
      {"compiler", Compiler()},
      {"matrix_library", kernels::MatrixLibrary()},
      {"instruction_set", device::InstructionSet()},
      {"canonical", DescribeCanonical()},
      {"ranks", job_.World().Size()},
      {"grid", comm::Describe(grid_.Shape())},
      {"host", job_.runtime->Hosts().front()}};
  if (job_.libraries != nullptr) {
    contents.run["products"] = job_.libraries->Chosen();
    const std::vector<float> scales = job_.libraries->Scales();
    if (!scales.empty()) contents.run["fp8_scales"] = scales;
  }
  const std::time_t now = std::time(nullptr);
  contents.run["sharding"] = comm::NameOf(grid_.Shards());
  contents.run["date"] = job_.World().Broadcast(fmt::format("{:%FT%TZ}", fmt::gmtime(now)));
  if (std::isfinite(best_loss_)) contents.run["best_loss"] = best_loss_;
  checkpoint::Write(job_.World(), folder_ + "/checkpoints", step_, contents, best,
                    job_.options.checkpoint.keep);
  best_is_new_ = false;
  last_checkpoint_time_ = Seconds();
  checkpoint_seconds_ += last_checkpoint_time_ - start;
}

}  // namespace trireme::driver
