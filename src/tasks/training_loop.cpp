// The training loop and its reports.
#include "trireme/tasks/training_loop.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "checkpoints.hpp"
#include "generator.hpp"
#include "safeguards.hpp"
#include "step_prediction.hpp"
#include "timeline.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/app/job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/program.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

TrainingLoop::TrainingLoop(app::Job& job, const train::Plan& plan, const data::Corpus& corpus,
                           std::span<const app::ValidSplit> validation, train::TrainingState& state,
                           train::TrainingStep& training_step)
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
  const train::StepResult result = training_step_.Run(step_, MyRequests(), train::OnFault::kSkip);
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

// TrainingLoop: the token files of its training, in the banner, in records and in run.json.

namespace {

// "books.h5", or the path as in the deck if another file of the mixture has that name.
std::string NameIn(const std::vector<data::MixtureFile>& files, std::size_t place) {
  const auto name = [](const data::MixtureFile& file) {
    return std::filesystem::path(file.path).filename().string();
  };
  const std::string own = name(files[place]);
  const auto same = std::count_if(files.begin(), files.end(),
                                  [&](const auto& file) { return name(file) == own; });
  return same == 1 ? own : files[place].path;
}

}  // namespace

std::vector<data::MixtureFile> TrainingLoop::Mixture() const {
  const data::Options& options = job_.options.data;
  if (!options.mixture.empty()) return options.mixture;
  if (plan_.training.samples.origin.sources.empty()) return {};
  return {{options.file, {.weight = 1}}};
}

std::string TrainingLoop::DescribePairs() const {
  const auto pairs = [&](data::Split split) { return report::WithThousands(pairs_->Pairs(split)); };
  const data::PairBatches& batches = training_step_.Pairs();
  std::string text =
      fmt::format("{}: {} / {} / {} pairs; {} an epoch, {:.1f}% padding",
                  std::filesystem::path(tokens_.Path()).filename().string(),
                  pairs(data::Split::kTrain), pairs(data::Split::kValid), pairs(data::Split::kTest),
                  report::Counted(batches.StepsPerEpoch(), "step"), 100 * batches.PaddedShare());
  if (batches.LeftOut() > 0) {
    text += fmt::format("; {} of more than {} tokens left out",
                        report::Counted(batches.LeftOut(), "pair"), plan_.training.model.length);
  }
  return text;
}

std::string TrainingLoop::DescribeData() const {
  if (pairs_ != nullptr) return DescribePairs();
  const std::vector<data::MixtureFile>& files = job_.options.data.mixture;
  const std::string order = fmt::format(
      "{} of {}, {} an epoch{}", report::Counted(training_step_.Samples().Windows(), "window"),
      plan_.training.model.length,
      report::Counted(training_step_.Samples().StepsPerEpoch(), "step"),
      train::DescribeMasks(plan_.training.model.document_mask,
                           corpus_.HasMask(data::Split::kTrain)));
  const std::string first = std::filesystem::path(tokens_.Path()).filename().string();
  const std::string valid = report::WithThousands(tokens_.Size(data::Split::kValid));
  const std::string test = report::WithThousands(tokens_.Size(data::Split::kTest));
  if (files.empty()) {
    return fmt::format("{}: {} / {} / {} tokens; {}", first,
                       report::WithThousands(tokens_.Size(data::Split::kTrain)), valid, test,
                       order);
  }
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto source = static_cast<std::int64_t>(i);
    const auto quota = static_cast<double>(training_step_.Samples().QuotaOf(source));
    text += fmt::format(
        "{} {:.3g}% ({} tokens, {:.3g} times an epoch) + ", NameIn(files, i),
        100 * quota / static_cast<double>(training_step_.Samples().Windows()),
        report::WithThousands(corpus_.Of(static_cast<int>(i)).Size(data::Split::kTrain)),
        quota / static_cast<double>(training_step_.Samples().WindowsOf(source)));
  }
  text.erase(text.size() - 3);
  return fmt::format("{}; {}; valid and test of {}: {} / {} tokens", text, order, NameIn(files, 0),
                     valid, test);
}

std::vector<std::pair<std::string, std::int64_t>> TrainingLoop::TokensOfSources() const {
  const std::vector<data::MixtureFile>& files = job_.options.data.mixture;
  if (files.empty()) return {};
  const std::vector<data::SourcePlace> places = training_step_.Samples().Places(step_);
  std::vector<std::pair<std::string, std::int64_t>> tokens;
  for (std::size_t i = 0; i < files.size(); ++i) {
    tokens.emplace_back(NameIn(files, i), places[i].targets);
  }
  return tokens;
}

// "sources books.h5 123,456 tokens (70.0%), 1.50 epochs; code.h5 ...".
std::string TrainingLoop::SourceSummary() const {
  const auto sources = TokensOfSources();
  if (sources.empty()) return {};
  const std::vector<data::SourcePlace> places = training_step_.Samples().Places(step_);
  double all = 0;
  for (const auto& [name, tokens] : sources) all += static_cast<double>(tokens);
  std::string text = "sources";
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto& [name, tokens] = sources[i];
    const auto windows =
        static_cast<double>(training_step_.Samples().WindowsOf(static_cast<std::int64_t>(i)));
    text += fmt::format("{} {} {} tokens ({:.1f}%), {:.2f} epochs", i == 0 ? "" : ";", name,
                        report::WithThousands(tokens),
                        all > 0 ? 100 * static_cast<double>(tokens) / all : 0.0,
                        static_cast<double>(places[i].windows) / windows);
  }
  return text;
}

// A batch of pairs follows from these settings and its step.
void TrainingLoop::SayOtherBatches(const nlohmann::json& run) {
  const nlohmann::json& record = job_.start.record->json;
  const std::array names = {"seed", "batch", "batch_tokens", "sequence_length"};
  if (std::ranges::none_of(names, [&](const char* name) {
        return record.contains(name) && record.at(name) != run.at(name);
      })) {
    return;
  }
  monitor_->Warn(
      fmt::format("the batches are others: epoch {} goes on at the same step, and repeats or "
                  "leaves out some of its pairs; later epochs are whole",
                  static_cast<std::int64_t>(Epoch()) + 1));
}

// The weights are those of the record's step, and with them the numbers of tokens that they have
// seen; the places in the files are those reached since.
data::Origin TrainingLoop::OriginAfterGoingBack(const app::RunRecord& record,
                                                const std::vector<data::SourcePlace>& reached,
                                                std::int64_t next_sample) const {
  data::Origin origin{.step = record.step,
                      .sample = next_sample,
                      .targets = record.origin ? record.origin->targets : 0};
  if (Mixture().empty()) return origin;
  std::vector<data::SourcePlace> then = plan_.training.samples.origin.sources;
  if (record.step != first_step_ && record.origin) then = record.origin->sources;
  then.resize(reached.size());
  for (std::size_t i = 0; i < reached.size(); ++i) {
    origin.sources.push_back({reached[i].windows, then[i].targets});
  }
  return origin;
}

// TrainingLoop: the banner, the checkpoints and what they say about the run.

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
  state_.FinishUpdate();
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

// TrainingLoop: validations and the test, with their records.

bool TrainingLoop::RecordEvaluation(const data::TokenFile& tokens, data::Split split,
                                    report::Record& record, double& seconds) {
  Watch(comm::Phase::kValidation, step_);
  const comm::Ledger steps_alone = grid_.Traffic();
  // One slice: a validation has more tasks than all steps of a timeline.
  const device::Scope scope(steps_alone.Trace(), {.name = device::SliceName::kValidation,
                                                  .category = device::SliceCategory::kValidation});
  device::Recorder* const recorder = steps_alone.Trace();
  if (recorder != nullptr) {
    device::Synchronise(job_.stream);  // transfers under way belong to the step
    grid_.TraceInto(nullptr);
  }
  const bool test = record.kind == report::Record::Kind::kTest;
  train::EvaluationOptions options;
  options.windows = test ? 0 : job_.options.monitor.validate_windows;
  options.seed = job_.options.machine.seed;
  options.stop = [this] { return job_.signals->Received(); };
  const train::Evaluation result =
      pairs_ == nullptr ? train::Evaluate(state_.Net(), tokens, split, options)
                        : train::EvaluatePairs(state_.Net(), *pairs_, split, options);
  grid_.Traffic() = steps_alone;  // the summary's table is about the steps
  if (recorder != nullptr) grid_.TraceInto(recorder);
  if (result.stopped) {
    stop_ = true;
    stop_reason_ = "a signal";
    return false;
  }
  seconds += result.seconds;
  record.step = step_;
  record.epoch = Epoch();
  record.tokens = order_.TargetsBefore(step_);
  record.loss = result.loss;
  if (result.windows < result.all_windows) {
    record.windows = result.windows;
    record.all_windows = result.all_windows;
    record.pairs = pairs_ != nullptr;
  }
  record.step_seconds = result.seconds;
  record.tokens_per_second = static_cast<double>(result.targets) / result.seconds;
  FindMemory(record);
  record.bad_steps = safeguards_->BadSteps();
  return true;
}

// Nothing is told of a validation that a signal cuts short: all sets come again after -r.
bool TrainingLoop::RecordValidation() {
  monitor_->FlushRecords();
  std::vector<report::Record> records(validation_.size());
  double seconds = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    // The first one alone decides.
    records[i].kind = i == 0 ? report::Record::Kind::kValid : report::Record::Kind::kValidOther;
    records[i].set = validation_[i].name;
    if (!RecordEvaluation(*validation_[i].tokens, data::Split::kValid, records[i], seconds)) {
      return false;
    }
  }
  for (const report::Record& record : records) monitor_->Evaluation(record);
  if (records.front().loss < best_loss_) {
    best_loss_ = records.front().loss;
    best_is_new_ = true;
  }
  deadline_.Validation(seconds);
  return true;
}

// Losses of another set are not comparable.
void TrainingLoop::TakeBest(const app::RunRecord& record) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const bool another = record.decider && !app::SameSet(*record.decider, decider_);
  best_loss_ = kept_best_loss_ = another ? kNone : record.best_loss.value_or(kNone);
  if (another) {
    decider_.since = record.step - (record.validation_due ? 1 : 0);  // which is of the new one
  } else {
    decider_.since = record.decider ? record.decider->since : 0;
  }
}

bool TrainingLoop::RecordTest() {
  report::Record record;
  record.kind = report::Record::Kind::kTest;
  double seconds = 0;
  if (!RecordEvaluation(tokens_, data::Split::kTest, record, seconds)) return false;
  monitor_->Evaluation(record);
  return true;
}

std::int64_t TrainingLoop::ValidationTokens() const {
  const std::int64_t windows = job_.options.monitor.validate_windows;
  const std::int64_t most = windows == 0 ? std::numeric_limits<std::int64_t>::max()
                                         : windows * job_.options.data.sequence_length;
  std::int64_t tokens = 0;
  for (const app::ValidSplit& valid : validation_) {
    tokens += std::min(most, valid.tokens->Size(data::Split::kValid));
  }
  return tokens;
}

void TrainingLoop::ValidateIfDue() {
  const std::int64_t every = job_.options.monitor.validate_every_steps;
  const bool due = every > 0 && (step_ % every == 0 || Finished());
  validation_due_ = false;
  if (!due) return;
  // A stop does not wait for a validation: the time left may be short. It comes first after -r.
  validation_due_ = (stop_ && !Finished()) || !RecordValidation();
}

}  // namespace trireme::tasks
