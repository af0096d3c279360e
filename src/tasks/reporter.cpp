// Reporter: gathers facts about a training from its ranks and puts them into words and records.
#include "reporter.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "root.hpp"
#include "safeguards.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::tasks {

namespace {

constexpr int kSumsATransfer = 5;
constexpr int kNumbersARank = 6;  // see RankUse: five in bytes, one in seconds
// The deck's sections that TensorBoard shows as hyperparameters.
constexpr const char* kHyperparameters[] = {"model",    "optimizer", "schedule", "data",
                                            "pipeline", "grid",      "run"};

template <typename Visit>
void EachTransfer(Visit visit) {
  for (int group = 0; group < comm::kGroups; ++group) {
    for (int transfer = 0; transfer < comm::kTransfers; ++transfer) {
      visit(static_cast<comm::Group>(group), static_cast<comm::Transfer>(transfer));
    }
  }
}

// Whether `value` is the key's default, however the number is written.
bool IsDefault(const deck::Key& key, const std::string& value) {
  const auto number = [](const std::string& text) { return std::strtod(text.c_str(), nullptr); };
  return value == key.fallback ||
         (key.kind == deck::KeyKind::kReal && number(value) == number(key.fallback));
}

void AddDeck(const app::Request& request, report::RunFacts& facts) {
  for (const auto& [section, help] : request.schema->Sections()) {
    for (const auto& [name, value] : request.deck.Section(section)) {
      const std::string key = fmt::format("{}.{}", section, name);
      facts.deck.emplace_back(key, value);
      if (!IsDefault(*request.schema->Find(key), value)) facts.deck_given.push_back(key);
    }
  }
}

// Rank 0's GPU connections: "NCCL 2.26.2; data group P2P/CUMEM, tensor group P2P/CUMEM".
std::string DescribeLinks() {
  std::string links;
  for (const auto& [name, text] : comm::DescribeGpuTransfers()) {
    if (!name.ends_with(" group") && !name.ends_with(" messages")) continue;
    links +=
        fmt::format("{}{} {}", links.empty() ? "; " : ", ", name, text.substr(0, text.find(';')));
  }
  return links.empty() ? links : comm::GpuTransferLibrary() + links;
}

}  // namespace

Reporter::Reporter(const app::Job& job, const train::Plan& plan, const TrainingData& data,
                   train::TrainingState& state, train::TrainingStep& step, const Progress& progress)
    : job_(job),
      plan_(plan),
      data_(data),
      state_(state),
      step_(step),
      progress_(progress),
      grid_(state.Grid()),
      prediction_(job.request, job.ranks, job.device, plan),
      started_(report::UtcNow()) {}

void Reporter::Begin(const RunSession& session, double roof_flops) {
  roof_flops_ = roof_flops;
  const report::BannerFacts banner = Banner();
  monitor_->Banner(banner);
  AttachTensorBoard(banner, session);
  MakeTimeline(session.Folder());
}

void Reporter::ShowPlan(const RunSession& session) {
  monitor_->Banner(Banner());
  SayInput(session);
  monitor_->Line("valid: everything was constructed; nothing was written");
}

void Reporter::SayEvent(const std::string& event, const std::string& text) {
  monitor_->Happened({.name = event, .step = progress_.step, .text = text});
}

// Prints how files were staged, and the warnings about the hosts, the deck and the checkpoints.
void Reporter::SayInput(const RunSession& session) {
  for (const tools::Warning& warning : job_.preflight.warnings) {
    SayEvent("preflight", warning.kind + ": " + warning.text);
  }
  if (const std::string line = app::StagingLine(job_.files); !line.empty()) monitor_->Line(line);
  for (const std::string& odd : train::Oddities(plan_)) monitor_->Warn(odd);
  for (const std::string& warning : session.Start().warnings) monitor_->Warn(warning);
  for (const std::string& passed_over : session.Start().passed_over) {
    monitor_->Warn("passed over " + passed_over);
    SayEvent("checkpoint passed over", passed_over);
  }
}

void Reporter::SayStart(const RunSession& session) {
  if (const std::string holder = session.TakenFrom(); !holder.empty()) {
    monitor_->Line("took the run over: " + holder);
    SayEvent("lock taken over", holder);
  }
  SayInput(session);
  const bool continues = session.Continues();
  if (continues && !session.Resumes()) {
    monitor_->Line(
        fmt::format("{} holds no checkpoint yet: it begins at step 0", session.Folder()));
  }
  if (continues) SayEvent("restart", fmt::format("start {} at this step", session.StartsHere()));
  if (!session.Resumes()) return;
  const std::string from = session.DescribeStart();
  monitor_->Line(fmt::format("{} {} at step {}", continues ? "resumed from" : report::kBranchedOff,
                             from, report::WithThousands(progress_.step)));
  if (!continues) SayEvent(report::kBranchedOff, from);
}

void Reporter::SayChanges(const app::RunRecord& record, const nlohmann::json& run,
                          const app::Decider& decider) {
  for (const std::string& change : app::Changes(record, run)) monitor_->Warn(change);
  if (const std::string layout = app::LayoutChange(record, run); !layout.empty()) {
    SayEvent("layout", layout);
  }
  if (const std::string change = app::DeciderChange(record, decider); !change.empty()) {
    monitor_->Warn(change);
  }
  SayOtherData(record, run);
}

// Warns if batches or windows differ from the run's. Pairs follow from a few settings and the step;
// changed windows go on at the same fraction of the epoch.
void Reporter::SayOtherData(const app::RunRecord& record, const nlohmann::json& run) {
  const bool pairs = data_.Pairs() != nullptr;
  const data::Sampler::Options& now = plan_.training.options.samples;
  bool others = record.length.value_or(now.length) != now.length ||
                record.stride.value_or(now.stride) != now.stride;
  if (pairs) {
    constexpr std::array kNames = {"seed", "batch", "batch_tokens", "sequence_length"};
    others = std::ranges::any_of(kNames, [&](const char* name) {
      return record.json.contains(name) && record.json.at(name) != run.at(name);
    });
  }
  if (!others) return;
  monitor_->Warn(fmt::format(
      "the {} are others: epoch {} goes on at the same {}, and repeats or leaves out some of its "
      "{}; later epochs are whole",
      pairs ? "batches" : "windows", static_cast<std::int64_t>(data_.Epoch(progress_.step)) + 1,
      pairs ? "step" : "fraction of them", pairs ? "pairs" : "targets"));
}

void Reporter::SayMixed(const std::string& mixed) {
  if (mixed.empty()) return;
  monitor_->Warn(mixed);
  SayEvent("mixed processors", mixed);
}

// Whether GPUs exchange data directly, so that the GPU transfer library has work to do.
bool Reporter::MeetsGpus() const {
  return job_.device.stream.OnGpu() && !job_.device.staged && job_.ranks.World().Size() > 1;
}

// Fills in the memory plan of the rank that needs most; stages and slices differ in size.
void Reporter::PlanMemory(report::BannerFacts& facts) const {
  if (!job_.ranks.World().IsRoot()) return;
  const std::vector<train::RankKind> kinds = train::PlanKinds(plan_);
  const device::MemoryTerms& most = kinds.front().memory;
  facts.memory_differs = kinds.back().memory.Total() < most.Total();
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    if (most.*term.bytes > 0) facts.memory.emplace_back(term.name, most.*term.bytes);
  }
}

report::BannerFacts Reporter::Banner() const {
  const comm::Hosts& hosts = job_.ranks.Hosts();
  report::BannerFacts facts;
  facts.version = Version();
  facts.commit = Commit();
  facts.ranks = job_.ranks.World().Size();
  facts.hosts = static_cast<int>(hosts.Names().size());
  facts.threads = job_.device.stream.threads;
  facts.pinned = job_.device.placement.pinned;
  facts.device = fmt::format(
      "{} ({})", device::NameOf(job_.device.stream.Where()),
      job_.device.stream.OnGpu() ? job_.device.gpu->Context().name : device::InstructionSet());
  facts.precision = job_.device.Precision();
  facts.grid = train::DescribeLayout(plan_.grid, plan_.sharing, plan_.training.model);
  facts.ranks_map = comm::RankMap(grid_.Shape(), hosts);
  facts.model = train::DescribeModel(plan_.training.model.options);
  facts.data = data_.Describe();
  facts.kernels = app::DescribeAttention(job_.request, job_.device);
  if (MeetsGpus()) facts.links = DescribeLinks();
  PlanMemory(facts);
  facts.roof_flops = roof_flops_;
  return facts;
}

// On rank 0. Failures here are reported and do not end the run.
void Reporter::AttachTensorBoard(const report::BannerFacts& banner, const RunSession& session) {
  if (!job_.request.monitor.tensorboard || !job_.ranks.World().IsRoot()) return;
  report::BoardFacts facts;
  facts.layout = report::BannerText(banner);
  for (const char* section : kHyperparameters) {
    for (const auto& [key, value] : job_.request.deck.Section(section)) {
      facts.deck.emplace_back(fmt::format("{}.{}", section, key), value);
    }
  }
  events_ = std::make_shared<report::EventLog>(
      report::EventLog::Setup{.folder = session.Folder() + "/tensorboard",
                              .continues = session.Continues(),
                              .resume_step = progress_.step});
  auto sink = std::make_unique<report::TensorBoardSink>(events_, std::move(facts));
  try {
    sink->Begin();
  } catch (const Error& error) {
    monitor_->Warn(fmt::format("{}; the run goes on without it", error.what()));
  }
  monitor_->Attach(std::move(sink));
}

// Creates the timeline, with the facts that its file tells a reader.
void Reporter::MakeTimeline(const std::string& folder) {
  const parallel::PipelineShape& stages = state_.Net().Tasks().Stages().Shape();
  nlohmann::json facts = {{"program", "Trireme " + Version()},
                          {"grid", comm::Describe(grid_.Shape())},
                          {"stages", stages.stages},
                          {"schedule", parallel::NameOf(stages.kind)},
                          {"chunks", stages.chunks},
                          {"micro_batches", stages.micro_batches},
                          {"device", device::NameOf(job_.device.stream.Where())}};
  if (job_.device.stream.OnGpu()) {
    facts["gpu"] =
        "slices of the thread GPU are times between events in its queue; the steps of a recorded "
        "graph (run.graphs) are one slice each";
  }
  timeline_.emplace(
      Timeline::Setup{.runtime = *job_.ranks.runtime,
                      .grid = grid_,
                      .monitor = *monitor_,
                      .stream = job_.device.stream,
                      .window = job_.request.monitor.trace_steps,
                      .kernels = job_.request.monitor.trace_kernels,
                      .step = progress_.step,
                      .total = progress_.last,
                      .path = folder + "/trace.json.gz",
                      .facts = facts,
                      .watch = [this] { progress_.watch(comm::Phase::kCheckpoint); }});
}

void Reporter::BeginSteps() {
  energy_->Begin();
  grid_.Traffic().Clear();
}

// Remembers the counts of gathers so far, so that only this step's own ones are reported.
void Reporter::BeginStep() {
  const parallel::ShardedUnits& units = state_.Net().Units();
  gathers_before_ = units.Gathers();
  ready_before_ = units.GathersReady();
  AskForHistograms();
  timeline_->BeginStep(progress_.step + 1);
}

void Reporter::Step(const train::StepResult& result, std::int64_t bad_steps,
                    double checkpoint_seconds) {
  const std::int64_t step = progress_.step;
  const double tokens = static_cast<double>(result.tokens);
  const parallel::ShardedUnits& units = state_.Net().Units();
  gathers_ += units.Gathers() - gathers_before_;
  gathers_ready_ += units.GathersReady() - ready_before_;
  report::Record record;
  record.kind = report::Record::Kind::kStep;
  record.step = step;
  record.epoch = data_.Epoch(step);
  record.tokens = data_.Order().TargetsBefore(step);
  record.loss = last_loss_ = result.loss;
  record.no_target = result.fault && result.fault->no_target;
  record.learning_rate = result.learning_rate;
  record.grad_norm = result.gradient_norm;
  record.step_seconds = result.times.total;
  record.tokens_per_second = tokens / result.times.total;
  record.flops_per_second = tokens * data_.FlopsPerToken(step - 1, result) / result.times.total;
  record.roof_fraction =
      record.flops_per_second / (roof_flops_ * static_cast<double>(job_.ranks.World().Size()));
  record.seconds_compute = result.times.compute;
  record.seconds_exposed_communication = result.times.exposed_communication;
  record.seconds_bubble = result.times.bubble;
  record.seconds_data = result.times.data;
  record.seconds_checkpoint = checkpoint_seconds;
  record.bad_steps = bad_steps;
  record.sources = data_.TokensOfSources(step);
  window_compute_ += result.own_compute;
  own_compute_ += result.own_compute;
  ++window_steps_;
  energy_->Count(result.tokens);
  // The largest rank's peak takes a collective, so it is found only for records that are kept.
  if (step == 1 || step % job_.request.monitor.every_steps == 0 || progress_.Ends()) {
    FindMemory(record);
    FindSlowest(record);
    record.more = energy_->EndInterval();
    record.ends_interval = true;
  }
  monitor_->Step(record);
}

void Reporter::Place(report::Record& record) const {
  record.step = progress_.step;
  record.epoch = data_.Epoch(progress_.step);
  record.tokens = data_.Order().TargetsBefore(progress_.step);
  FindMemory(record);
}

// Fills in the rank that uses most memory, the lowest one if several do.
void Reporter::FindMemory(report::Record& record) const {
  const comm::Communicator& world = job_.ranks.World();
  const std::int64_t mine = app::MemoryInUse(job_.device);
  record.memory_bytes = world.Max(mine);
  record.memory_rank = static_cast<int>(
      world.Min(std::int64_t{mine == record.memory_bytes ? world.Rank() : world.Size()}));
  record.memory_host = HostOf(record.memory_rank);
}

// Fills in the slowest rank since the last record; prints a line if it costs the others much.
void Reporter::FindSlowest(report::Record& record) {
  constexpr double kMuch = 0.2;       // excess, as a fraction of its stage's mean
  constexpr double kManySeconds = 1;  // lost by the others since the last record
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
                      .step = progress_.step,
                      .rank = slowest.rank,
                      .host = record.slowest_host,
                      .text = text,
                      .numbers = {{"seconds", slowest.seconds}, {"mean_seconds", slowest.mean}}});
}

// Transfers made here, and their time, do not count as the steps'.
std::vector<report::NamedHistogram> Reporter::HistogramsOf(const checkpoint::State& state,
                                                           const char* prefix,
                                                           double divisor) const {
  const comm::Ledger steps_alone = grid_.Traffic();
  const device::Scope scope(steps_alone.Trace(), {.name = device::SliceName::kHistograms,
                                                  .category = device::SliceCategory::kValidation});
  grid_.Traffic().TraceInto(nullptr);
  std::vector<report::NamedHistogram> histograms = report::HistogramsOf(
      grid_.Over(comm::Group::kWorld).OnHost(), state.model, state.read, prefix, divisor);
  grid_.Traffic() = steps_alone;
  return histograms;
}

// Requests histograms of the coming step's gradients, which are gone after the update.
void Reporter::AskForHistograms() {
  if (!Comes(progress_.step + 1, job_.request.monitor.histogram_every_steps)) return;
  step_.BeforeNextUpdate([this](std::int64_t targets) {
    gradient_histograms_ =
        HistogramsOf(state_.GradientState(), "gradients/", static_cast<double>(targets));
  });
}

void Reporter::AddHistograms() {
  if (!Comes(progress_.step, job_.request.monitor.histogram_every_steps)) return;
  step_.BeforeNextUpdate({});  // cancels the request: a skipped step never took it
  const auto weights = HistogramsOf(state_.CheckpointState(), "weights/", 1);
  const auto gradients = std::exchange(gradient_histograms_, {});
  if (events_ == nullptr) return;
  events_->AddHistograms(progress_.step, weights);
  events_->AddHistograms(progress_.step, gradients);
}

// Transfers of this session's steps, summed over all ranks: one row per kind that occurred.
std::vector<report::TrafficRow> Reporter::GatherTraffic() const {
  const comm::Communicator& world = job_.ranks.World();
  if (world.Size() == 1) return {};
  const comm::Ledger ledger = grid_.Traffic();  // a copy, before the transfers below
  std::vector<double> sums, longest;
  EachTransfer([&](comm::Group group, comm::Transfer transfer) {
    const comm::Traffic& mine = ledger.At(group, transfer);
    sums.insert(sums.end(), {mine.calls > 0 ? 1.0 : 0.0, static_cast<double>(mine.calls),
                             mine.moved, mine.seconds_waited, mine.seconds_hidden});
    longest.push_back(mine.seconds_waited);
  });
  world.Sum(sums);
  grid_.Over(comm::Group::kWorld)
      .AllReduce(Dtype::kFloat64, longest.data(), std::ssize(longest), comm::Reduction::kMax);

  std::vector<report::TrafficRow> rows;
  const double *sum = sums.data(), *most = longest.data();
  EachTransfer([&](comm::Group group, comm::Transfer transfer) {
    if (sum[0] > 0) {
      rows.push_back({.group = NameOf(group),
                      .transfer = NameOf(transfer),
                      .ranks = sum[0],
                      .calls = sum[1],
                      .bytes = sum[2],
                      .seconds_waited = sum[3] / world.Size(),
                      .longest_waited = *most,
                      .seconds_hidden = sum[4] / world.Size()});
    }
    sum += kSumsATransfer;
    ++most;
  });
  return rows;
}

report::Gathers Reporter::MeanGathers() const {
  if (grid_.Shard().Size() == 1) return {};  // no gathers: nothing is sharded
  const comm::Communicator& world = job_.ranks.World();
  std::vector<double> sums = {static_cast<double>(gathers_), static_cast<double>(gathers_ready_)};
  world.Sum(sums);
  return {.count = sums[0] / world.Size(), .ready = sums[1] / world.Size()};
}

report::RunFacts Reporter::Facts() const {
  const report::BannerFacts banner = Banner();
  report::RunFacts facts{.version = banner.version,
                         .commit = banner.commit,
                         .started = started_,
                         .first_step = progress_.first,
                         .total_steps = progress_.last,
                         .ranks = banner.ranks,
                         .threads = banner.threads,
                         .device = banner.device,
                         .precision = banner.precision,
                         .grid = banner.grid,
                         .model = banner.model,
                         .data = banner.data,
                         .parameters = model::ParameterCount(plan_.training.model.options),
                         .roof_flops = banner.roof_flops,
                         .planned_memory = banner.memory};
  facts.hosts = job_.ranks.Hosts().Names();
  facts.preflight.facts = job_.preflight.facts;
  facts.preflight.seconds = job_.preflight.seconds;
  for (const tools::Warning& warning : job_.preflight.warnings) {
    facts.preflight.warnings.emplace_back(warning.kind, warning.text);
  }
  if (MeetsGpus()) facts.gpu_transfers = comm::DescribeGpuTransfers();
  if (job_.request.data.mixture.empty()) facts.entropy_floor = data_.Tokens().EntropyRate();
  AddDeck(job_.request, facts);
  return facts;
}

report::Summary Reporter::SummarySoFar(const RunSession& session) {
  timeline_->End("the run ended");
  const std::string& folder = session.Folder();
  report::Summary summary;
  summary.traffic = GatherTraffic();
  summary.gathers = MeanGathers();
  summary.facts = Facts();
  const data::StagedCopies& staged = job_.files.staging->Total();
  summary.staging = {.files = staged.files,
                     .bytes = staged.bytes,
                     .nodes = staged.nodes,
                     .seconds = staged.seconds,
                     .folder = job_.files.staging->Folder()};
  summary.files = {{"run folder", folder},
                   {"checkpoint", folder + "/checkpoints/latest"},
                   {"metrics", folder + "/metrics.jsonl"},
                   {"log", folder + "/log.txt"}};
  std::error_code ignored;
  if (std::filesystem::exists(folder + "/checkpoints/best", ignored)) {
    summary.files.insert(summary.files.begin() + 2, {"best", folder + "/checkpoints/best"});
  }
  if (timeline_->Written()) summary.files.emplace_back("timeline", folder + "/trace.json.gz");
  return summary;
}

void Reporter::FindRanks(std::int64_t writer_bytes, report::Summary& summary) const {
  const comm::Communicator& world = job_.ranks.World();
  std::vector<double> numbers(static_cast<std::size_t>(world.Size()) * kNumbersARank);
  double* mine = numbers.data() + static_cast<std::ptrdiff_t>(world.Rank()) * kNumbersARank;
  const device::MemoryTerms planned = train::PlanMemory(plan_, world.Rank());
  // Resident bytes in shared memory include other ranks' data. This rank's own part is its tokens,
  // its copies for asynchronous checkpoints, and the memory in which it writes for other ranks.
  const std::int64_t shared = job_.device.stream.OnGpu() ? 0 : report::SharedResidentBytes();
  const std::int64_t own = planned.tokens + planned.checkpoint_copy + writer_bytes;
  mine[0] = static_cast<double>(planned.Total());
  mine[1] = static_cast<double>(app::MemoryInUse(job_.device));
  mine[2] = static_cast<double>(job_.device.program_bytes);
  mine[3] = static_cast<double>(writer_bytes);
  mine[4] = static_cast<double>(std::max(shared - own, std::int64_t{0}));
  mine[5] = own_compute_;
  world.Sum(numbers);
  if (!world.IsRoot()) return;
  const double* of_rank = numbers.data();
  for (int rank = 0; rank < world.Size(); ++rank, of_rank += kNumbersARank) {
    const comm::GridShape at = comm::Locate(rank, grid_.Shape());
    summary.ranks.push_back({.rank = rank,
                             .host = HostOf(rank),
                             .pipeline = at.pipeline,
                             .data = at.data,
                             .context = at.context,
                             .tensor = at.tensor,
                             .planned_bytes = static_cast<std::int64_t>(of_rank[0]),
                             .used_bytes = static_cast<std::int64_t>(of_rank[1]),
                             .program_bytes = static_cast<std::int64_t>(of_rank[2]),
                             .writer_bytes = static_cast<std::int64_t>(of_rank[3]),
                             .others_bytes = static_cast<std::int64_t>(of_rank[4]),
                             .seconds_compute = of_rank[5]});
  }
}

// Memory is compared on the rank with the largest plan.
void Reporter::ComparePrediction(bool ended, report::Summary& summary) {
  const comm::Communicator& world = job_.ranks.World();
  std::vector<double> sums(comm::kGroups);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = grid_.Traffic().SecondsWaited(static_cast<comm::Group>(i));
  }
  world.Sum(sums);
  comm::GroupSeconds waited{};
  for (std::size_t i = 0; i < sums.size(); ++i) waited[i] = sums[i] / world.Size();
  prediction_.Calibrate(ended, progress_.deadline.Left(Seconds()));
  AtRoot(world, [&] {
    const auto [means, steps] = monitor_->Means();
    summary.comparison = prediction_.Compare(means, steps, waited);
    const auto largest = std::ranges::max_element(summary.ranks, {}, &report::RankUse::Foreseen);
    summary.comparison.planned_bytes = largest->Foreseen();
    summary.comparison.used_bytes = largest->Taken();
  });
}

void Reporter::Done(const Ending& ending, report::Summary summary) {
  report::Record record;
  record.kind = report::Record::Kind::kDone;
  record.ended = ending.ended;
  Place(record);
  record.loss = last_loss_;
  record.seconds_checkpoint = ending.checkpoint_seconds;
  record.bad_steps = ending.bad_steps;
  record.sources = data_.TokensOfSources(progress_.step);
  if (!ending.ended) summary.reason = progress_.stop_reason;
  FindRanks(ending.writer_bytes, summary);
  ComparePrediction(ending.ended, summary);
  summary.energy = energy_->EndSession();
  record.more = summary.energy.numbers;
  std::vector<std::string> lines = {report::ComparisonText(summary.comparison),
                                    EnergyLine(summary.energy),
                                    data_.SourceSummary(progress_.step)};
  lines.insert(lines.end(), ending.lines.begin(), ending.lines.end());
  monitor_->Done(record, std::move(summary));
  for (const std::string& line : lines) {
    if (!line.empty()) monitor_->Line(line);
  }
}

void Reporter::SayStopped(const std::string& folder) {
  const std::string& reason = progress_.stop_reason;
  SayEvent("stop", reason);
  if (job_.request.monitor.report) {
    monitor_->Line("page    of the run so far: " + report::PageCommandText(folder));
  }
  monitor_->Line(
      fmt::format("stopped by {} after step {}; checkpoint written: run it again with -r {}",
                  reason, report::WithThousands(progress_.step), folder));
}

}  // namespace trireme::tasks
