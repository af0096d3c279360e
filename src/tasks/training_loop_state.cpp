// TrainingLoop: the banner, the checkpoints and what they say about the run.
#include <fmt/format.h>

#include <cmath>

#include "checkpoints.hpp"
#include "local_checkpoints.hpp"
#include "safeguards.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/training_loop.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/comm/node_memory.hpp"

namespace trireme::tasks {

// Stages and slices differ in size: the plan of the rank that needs most decides what fits.
void TrainingLoop::PlanMemory(report::BannerFacts& facts) const {
  if (!job_.World().IsRoot()) return;
  const std::vector<train::RankKind> kinds = train::PlanKinds(plan_);
  const device::MemoryTerms& most = kinds.front().memory;
  facts.memory_differs = kinds.back().memory.Total() < most.Total();
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    if (most.*term.bytes > 0) facts.memory.emplace_back(term.name, most.*term.bytes);
  }
}

// Whether the library for transfers between GPUs has anything to do.
bool TrainingLoop::MeetsGpus() const {
  return job_.stream.OnGpu() && !job_.gpu_staged && job_.World().Size() > 1;
}

// "NCCL 2.26.2; data group P2P/CUMEM, tensor group P2P/CUMEM", as rank 0 is connected.
std::string TrainingLoop::DescribeLinks() const {
  std::string links;
  for (const auto& [name, text] : comm::DescribeGpuTransfers()) {
    if (!name.ends_with(" group") && !name.ends_with(" messages")) continue;
    links +=
        fmt::format("{}{} {}", links.empty() ? "; " : ", ", name, text.substr(0, text.find(';')));
  }
  return links.empty() ? links : comm::GpuTransferLibrary() + links;
}

report::BannerFacts TrainingLoop::Banner() const {
  const comm::Hosts& hosts = job_.runtime->Hosts();
  report::BannerFacts facts;
  facts.version = Version();
  facts.commit = Commit();
  facts.ranks = job_.World().Size();
  facts.hosts = static_cast<int>(hosts.Names().size());
  facts.threads = job_.stream.threads;
  facts.pinned = job_.placement.pinned;
  facts.device =
      fmt::format("{} ({})", device::NameOf(job_.stream.Where()),
                  job_.stream.OnGpu() ? job_.gpu->Context().name : device::InstructionSet());
  facts.precision = job_.Precision();
  facts.grid = train::DescribeLayout(plan_.grid, plan_.sharing, plan_.training.model);
  facts.ranks_map = comm::RankMap(grid_.Shape(), hosts);
  facts.model = train::DescribeModel(plan_.training.model.options);
  facts.data = DescribeData();
  facts.kernels = app::DescribeAttention(job_);
  if (MeetsGpus()) facts.links = DescribeLinks();
  PlanMemory(facts);
  facts.roof_flops = roof_flops_;
  return facts;
}

// With document masks, of the keys that the step's queries saw.
double TrainingLoop::FlopsPerToken(const train::StepResult& result) const {
  const model::ModelPlan& model = plan_.training.model;
  if (pairs_ != nullptr) {  // of the padded batch
    const data::PairBatchShape shape = training_step_.Pairs().Shape(step_ - 1);
    return static_cast<double>(shape.pairs) *
           model::PairFlops(model.options, shape.source_length, shape.target_length) /
           static_cast<double>(result.tokens);
  }
  if (!model.document_mask) return model::FlopsPerToken(model.options, model.length);
  return model::FlopsPerTokenOf(
      model.options, static_cast<double>(result.visible_keys) / static_cast<double>(result.tokens));
}

// run.json, but for the date and the order of writing.
nlohmann::json TrainingLoop::RunJson() const {
  nlohmann::json run = {{"step", step_},
                        {"epoch", Epoch()},
                        {"next_sample", order_.NextSample(step_)},
                        {"tokens", order_.TargetsBefore(step_)},
                        {"seed", plan_.training.model.seed},
                        {"source_sha256", tokens_.SourceSha256()},
                        {"vocabulary", vocabulary_},
                        {"model", app::ModelJson(plan_.training.model.options)},
                        {"optimizer", app::SectionJson(job_.deck, "optimizer")},
                        {"schedule", app::SectionJson(job_.deck, "schedule")},
                        {"sequence_length", plan_.training.model.length},
                        {"stride", plan_.training.samples.stride},
                        {"batch", plan_.training.samples.batch},
                        {"batch_tokens", job_.options.data.batch_tokens},
                        {"document_mask", plan_.training.model.document_mask},
                        {"precision", job_.Precision()},
                        {"deck", job_.deck.Resolved()},
                        {"matrix_library", kernels::MatrixLibrary()},
                        {"instruction_set", device::InstructionSet()},
                        {"canonical", DescribeCanonical()},
                        {"ranks", job_.World().Size()},
                        {"grid", comm::Describe(grid_.Shape())},
                        {"sharding", comm::NameOf(grid_.Shards())}};
  run.update(app::ProgramJson(job_.runtime->Hosts().First()));
  if (job_.libraries != nullptr) {
    run["products"] = job_.libraries->Chosen();
    const std::vector<float> scales = job_.libraries->Scales();
    if (!scales.empty()) run["fp8_scales"] = scales;
  }
  if (const std::vector<data::MixtureFile> files = Mixture(); !files.empty()) {
    run["mixture"] = app::MixtureJson(files, corpus_, training_step_.Samples(), step_);
  } else {
    run["train_tokens"] = tokens_.Size(data::Split::kTrain);
  }
  if (local_ != nullptr) {
    run[app::kRunName] = local_->Run().id;
    run[app::kSessionName] = local_->Run().session;
  }
  run["validation"] = app::DeciderJson(decider_);
  if (std::isfinite(best_loss_)) run["best_loss"] = best_loss_;
  if (validation_due_) run["validation_due"] = true;
  if (safeguards_->HasGoneBack()) {
    run["planned"] = {{"epochs", job_.options.schedule.epochs}, {"steps", schedule_.steps}};
  }
  return run;
}

void TrainingLoop::WriteCheckpoint(bool best, bool stop_only) {
  monitor_->FlushRecords();
  if (local_ != nullptr) {
    const Drain drain = WriteLocal(best, stop_only);
    if (drain == Drain::kNone) return;
    stop_only = drain == Drain::kIrregular;
  }
  WriteRunFolder(best, stop_only);
}

void TrainingLoop::WriteRunFolder(bool best, bool stop_only) {
  // The outcome of the one before decides what this one says of the best.
  SettleCheckpoints();
  if (best) best_under_way_loss_ = best_loss_;
  if (stop_only) NoteCheckpoint();
  nlohmann::json run = RunJson();
  run["safeguards"] = safeguards_->Json(stop_only);
  run["date"] = app::DateNow(job_.World());
  const Checkpoints::Reason reason{.best = best, .stop_only = stop_only};
  if (Finished() || stop_) {
    checkpoints_->WriteLast(step_, run, reason);
  } else {
    checkpoints_->Write(step_, run, reason);
  }
  best_is_new_ = false;
  AccountForCheckpoints();
}

// A best checkpoint that was not written leaves the one before it the best, unless a validation has
// found a better state meanwhile.
void TrainingLoop::AccountForCheckpoints() {
  checkpoint_seconds_ += checkpoints_->TakeSeconds();
  const std::optional<bool> written = checkpoints_->TakeBest();
  if (!written) return;
  if (*written) {
    kept_best_loss_ = best_under_way_loss_;
  } else if (best_loss_ == best_under_way_loss_) {
    best_loss_ = kept_best_loss_;
  }
}

// On GPUs the planned memory is that of the cards; copies lie in the node's.
void TrainingLoop::CheckCopyMemory(const checkpoint::State& state) const {
  if (!job_.options.checkpoint.async || !job_.stream.OnGpu()) return;
  const std::int64_t needed = job_.runtime->Node().Sum(checkpoint::CopyBytes(state.model) +
                                                       checkpoint::CopyBytes(state.optimizer));
  job_.World().Together([&] {
    const comm::Available available = comm::AvailableMemory();
    if (needed <= available.bytes) return;
    throw InputError(
        fmt::format("memory: copies for checkpoint.async take {} of this node, but {} "
                    "are {}",
                    report::AsBytes(needed), report::AsBytes(available.bytes), available.source),
        "Use more nodes, or checkpoint.async = no.");
  });
}

void TrainingLoop::MakeCheckpoints() {
  checkpoint::State state = state_.CheckpointState();
  const bool asks = job_.World().IsRoot() && !job_.options.checkpoint.local.empty();
  const std::int64_t sequence = asks ? checkpoint::LastSequence(folder_ + "/checkpoints") : 0;
  CheckCopyMemory(state);
  checkpoints_ =
      std::make_unique<Checkpoints>(Checkpoints::Setup{.runtime = *job_.runtime,
                                                       .options = job_.options.checkpoint,
                                                       .monitor = *monitor_,
                                                       .deadline = deadline_,
                                                       .folder = folder_,
                                                       .sequence = sequence,
                                                       .cores = job_.signals->UsableCores(),
                                                       .traffic = grid_.Traffic(),
                                                       .may_publish = [this] { HoldLock(true); },
                                                       .may_go_on = [this] { HoldLock(false); }},
                                    std::move(state));
}

}  // namespace trireme::tasks
