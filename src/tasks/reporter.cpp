// Reporter: gathers facts about a training from its ranks and puts them into words and records.
#include "reporter.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "root.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::tasks {

namespace {

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

Reporter::Reporter(LoopParts& loop)
    : loop_(loop),
      grid_(loop.state.Grid()),
      prediction_(loop.job, loop.plan),
      started_(report::UtcNow()) {}

void Reporter::Begin(double roof_flops) {
  roof_flops_ = roof_flops;
  const report::BannerFacts banner = Banner();
  loop_.monitor->Banner(banner);
  AttachTensorBoard(banner);
  timeline_.emplace(loop_);
}

void Reporter::ShowPlan() {
  loop_.monitor->Banner(Banner());
  SayInput();
  loop_.monitor->Line("valid: everything was constructed; nothing was written");
}

void Reporter::SayEvent(const std::string& event, const std::string& text) {
  loop_.monitor->Happened({.name = event, .step = loop_.progress.step, .text = text});
}

// Records the warnings about hosts; prints how files were staged, and other warnings of the start.
void Reporter::SayInput() {
  for (const tools::Warning& warning : loop_.job.preflight.warnings) {
    SayEvent("preflight", warning.kind + ": " + warning.text);
  }
  if (const std::string line = app::StagingLine(loop_.job.files); !line.empty())
    loop_.monitor->Line(line);
  for (const std::string& odd : train::Oddities(loop_.plan)) loop_.monitor->Warn(odd);
  for (const std::string& warning : loop_.job.start.warnings) loop_.monitor->Warn(warning);
  for (const std::string& passed_over : loop_.job.start.passed_over) {
    loop_.monitor->Warn("passed over " + passed_over);
    SayEvent("checkpoint passed over", passed_over);
  }
}

void Reporter::SayStart() {
  const RunSession& session = *loop_.session;
  if (const std::string holder = session.TakenFrom(); !holder.empty()) {
    loop_.monitor->Line("took the run over: " + holder);
    SayEvent("lock taken over", holder);
  }
  SayInput();
  const bool continues = session.Continues();
  if (continues && !session.Resumes()) {
    loop_.monitor->Line(
        fmt::format("{} holds no checkpoint yet: it begins at step 0", session.Folder()));
  }
  if (continues) SayEvent("restart", fmt::format("start {} at this step", session.StartsHere()));
  if (!session.Resumes()) return;
  const std::string from = session.DescribeStart();
  loop_.monitor->Line(fmt::format("{} {} at step {}",
                                  continues ? "resumed from" : report::kBranchedOff, from,
                                  report::WithThousands(loop_.progress.step)));
  if (!continues) SayEvent(report::kBranchedOff, from);
}

void Reporter::SayChanges(const app::RunRecord& record, const nlohmann::json& run,
                          const app::Decider& decider) {
  for (const std::string& change : app::Changes(record, run)) loop_.monitor->Warn(change);
  if (const std::string layout = app::LayoutChange(record, run); !layout.empty()) {
    SayEvent("layout", layout);
  }
  if (const std::string change = app::DeciderChange(record, decider); !change.empty()) {
    loop_.monitor->Warn(change);
  }
  SayOtherData(record, run);
}

// Warns if windows, or batches of pairs, differ from the run's. Other windows go on at the same
// fraction of the epoch, other batches at the same step of it.
void Reporter::SayOtherData(const app::RunRecord& record, const nlohmann::json& run) {
  const bool pairs = loop_.data.Pairs() != nullptr;
  const data::Sampler::Options& now = loop_.plan.training.options.samples;
  bool others = record.length.value_or(now.length) != now.length ||
                record.stride.value_or(now.stride) != now.stride;
  if (pairs) {
    constexpr std::array kNames = {"seed", "batch", "batch_tokens", "sequence_length"};
    others = std::ranges::any_of(kNames, [&](const char* name) {
      return record.json.contains(name) && record.json.at(name) != run.at(name);
    });
  }
  if (!others) return;
  loop_.monitor->Warn(fmt::format(
      "the {} are others: epoch {} goes on at the same {}, and repeats or leaves out some of its "
      "{}; later epochs are whole",
      pairs ? "batches" : "windows",
      static_cast<std::int64_t>(loop_.data.Epoch(loop_.progress.step)) + 1,
      pairs ? "step" : "fraction of them", pairs ? "pairs" : "targets"));
}

void Reporter::SayMixed(const std::string& mixed) {
  if (mixed.empty()) return;
  loop_.monitor->Warn(mixed);
  SayEvent("mixed processors", mixed);
}

// Whether GPUs exchange data directly, so that the GPU transfer library has work to do.
bool Reporter::MeetsGpus() const {
  return loop_.job.device.stream.OnGpu() && !loop_.job.device.staged &&
         loop_.job.ranks.World().Size() > 1;
}

// Fills in the memory plan of the rank that needs most; stages and slices differ in size.
void Reporter::PlanMemory(report::BannerFacts& facts) const {
  if (!loop_.job.ranks.World().IsRoot()) return;
  const std::vector<train::RankKind> kinds = train::PlanKinds(loop_.plan);
  const device::MemoryTerms& most = kinds.front().memory;
  facts.memory_differs = kinds.back().memory.Total() < most.Total();
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    if (most.*term.bytes > 0) facts.memory.emplace_back(term.name, most.*term.bytes);
  }
}

report::BannerFacts Reporter::Banner() const {
  const comm::Hosts& hosts = loop_.job.ranks.Hosts();
  report::BannerFacts facts;
  facts.version = Version();
  facts.commit = Commit();
  facts.ranks = loop_.job.ranks.World().Size();
  facts.hosts = static_cast<int>(hosts.Names().size());
  facts.threads = loop_.job.device.stream.threads;
  facts.pinned = loop_.job.device.placement.pinned;
  facts.device = fmt::format("{} ({})", device::NameOf(loop_.job.device.stream.Where()),
                             loop_.job.device.stream.OnGpu() ? loop_.job.device.gpu->Context().name
                                                             : device::InstructionSet());
  facts.precision = loop_.job.device.Precision();
  if (const std::string& why = loop_.job.device.why_fp32; !why.empty()) {
    facts.precision += " by fp32 products: " + why;
  }
  facts.grid =
      train::DescribeLayout(loop_.plan.grid, loop_.plan.sharing, loop_.plan.training.model);
  facts.ranks_map = comm::RankMap(grid_.Shape(), hosts);
  facts.model = train::DescribeModel(loop_.plan.training.model.options);
  facts.data = loop_.data.Describe();
  facts.kernels = app::DescribeAttention(loop_.job.request, loop_.job.device);
  if (MeetsGpus()) facts.links = DescribeLinks();
  PlanMemory(facts);
  facts.roof_flops = roof_flops_;
  return facts;
}

// On rank 0. Failures here are reported and do not end the run.
void Reporter::AttachTensorBoard(const report::BannerFacts& banner) {
  if (!loop_.job.request.monitor.tensorboard || !loop_.job.ranks.World().IsRoot()) return;
  report::BoardFacts facts;
  facts.layout = report::BannerText(banner);
  for (const char* section : kHyperparameters) {
    for (const auto& [key, value] : loop_.job.request.deck.Section(section)) {
      facts.deck.emplace_back(fmt::format("{}.{}", section, key), value);
    }
  }
  events_ = std::make_shared<report::EventLog>(
      report::EventLog::Setup{.folder = loop_.session->Folder() + "/tensorboard",
                              .continues = loop_.session->Continues(),
                              .resume_step = loop_.progress.step});
  auto sink = std::make_unique<report::TensorBoardSink>(events_, std::move(facts));
  try {
    sink->Begin();
  } catch (const Error& error) {
    loop_.monitor->Warn(fmt::format("{}; the run goes on without it", error.what()));
  }
  loop_.monitor->Attach(std::move(sink));
}

void Reporter::BeginSteps() {
  energy_->Begin();
  grid_.Traffic().Clear();
}

// Remembers the counts of gathers so far, so that only this step's own ones are reported.
void Reporter::BeginStep() {
  const parallel::ShardedUnits& units = loop_.state.Net().Units();
  gathers_before_ = units.Gathers();
  ready_before_ = units.GathersReady();
  AskForHistograms();
  timeline_->BeginStep(loop_.progress.step + 1);
}

void Reporter::Step(const train::StepResult& result, std::int64_t bad_steps,
                    double checkpoint_seconds) {
  const std::int64_t step = loop_.progress.step;
  const double tokens = static_cast<double>(result.tokens);
  const parallel::ShardedUnits& units = loop_.state.Net().Units();
  gathers_ += units.Gathers() - gathers_before_;
  gathers_ready_ += units.GathersReady() - ready_before_;
  report::Record record;
  record.kind = report::Record::Kind::kStep;
  record.step = step;
  record.epoch = loop_.data.Epoch(step);
  record.tokens = loop_.data.Order().TargetsBefore(step);
  record.loss = last_loss_ = result.loss;
  record.no_target = result.fault && result.fault->no_target;
  record.learning_rate = result.learning_rate;
  record.grad_norm = result.gradient_norm;
  record.step_seconds = result.times.total;
  record.tokens_per_second = tokens / result.times.total;
  record.flops_per_second =
      tokens * loop_.data.FlopsPerToken(step - 1, result) / result.times.total;
  record.roof_fraction =
      record.flops_per_second / (roof_flops_ * static_cast<double>(loop_.job.ranks.World().Size()));
  record.seconds_compute = result.times.compute;
  record.seconds_exposed_communication = result.times.exposed_communication;
  record.seconds_bubble = result.times.bubble;
  record.seconds_data = result.times.data;
  record.seconds_checkpoint = checkpoint_seconds;
  record.bad_steps = bad_steps;
  record.sources = loop_.data.TokensOfSources(step);
  window_compute_ += result.own_compute;
  own_compute_ += result.own_compute;
  ++window_steps_;
  energy_->Count(result.tokens);
  // Finding the rank with most memory takes collectives, so only records that are kept name it.
  if (step == 1 || step % loop_.job.request.monitor.every_steps == 0 || loop_.progress.Ends()) {
    FindMemory(record);
    FindSlowest(record);
    record.more = energy_->EndInterval();
    record.ends_interval = true;
  }
  loop_.monitor->Step(record);
}

void Reporter::Place(report::Record& record) const {
  record.step = loop_.progress.step;
  record.epoch = loop_.data.Epoch(loop_.progress.step);
  record.tokens = loop_.data.Order().TargetsBefore(loop_.progress.step);
  FindMemory(record);
}

// Fills in the rank that uses most memory, the lowest one if several do.
void Reporter::FindMemory(report::Record& record) const {
  const comm::Communicator& world = loop_.job.ranks.World();
  const std::int64_t mine = app::MemoryInUse(loop_.job.device);
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
  const std::string text = fmt::format(
      "rank {} on {} computes {:.3g} s per step, {:.0f}% more than the mean of its stage",
      slowest.rank, record.slowest_host, slowest.seconds, 100 * lost / slowest.mean);
  loop_.monitor->Line("slowest: " + text);
  loop_.monitor->Happened(
      {.name = "straggler",
       .step = loop_.progress.step,
       .rank = slowest.rank,
       .host = record.slowest_host,
       .text = text,
       .numbers = {{"seconds", slowest.seconds}, {"mean_seconds", slowest.mean}}});
}

// The transfers made here are not counted among those of the steps.
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
  if (!Comes(loop_.progress.step + 1, loop_.job.request.monitor.histogram_every_steps)) return;
  loop_.step.BeforeNextUpdate([this](std::int64_t targets) {
    gradient_histograms_ =
        HistogramsOf(loop_.state.GradientState(), "gradients/", static_cast<double>(targets));
  });
}

void Reporter::AddHistograms() {
  if (!Comes(loop_.progress.step, loop_.job.request.monitor.histogram_every_steps)) return;
  loop_.step.BeforeNextUpdate({});  // cancels the request, which a skipped step has not used
  const auto weights = HistogramsOf(loop_.state.CheckpointState(), "weights/", 1);
  const auto gradients = std::exchange(gradient_histograms_, {});
  if (events_ == nullptr) return;
  events_->AddHistograms(loop_.progress.step, weights);
  events_->AddHistograms(loop_.progress.step, gradients);
}

// Transfers of this session's steps, over all ranks: one row per kind that occurred. Bytes are
// summed, seconds are means of a rank, `longest` is the largest of one rank.
std::vector<report::TrafficRow> Reporter::GatherTraffic() const {
  const comm::Communicator& world = loop_.job.ranks.World();
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
    rows.push_back({.group = NameOf(group),
                    .transfer = NameOf(transfer),
                    .ranks = *sum++,
                    .calls = *sum++,
                    .bytes = *sum++,
                    .seconds_waited = *sum++ / world.Size(),
                    .longest_waited = *most++,
                    .seconds_hidden = *sum++ / world.Size()});
  });
  std::erase_if(rows, [](const report::TrafficRow& row) { return row.ranks == 0; });
  return rows;
}

report::Gathers Reporter::MeanGathers() const {
  if (grid_.Shard().Size() == 1) return {};  // no gathers: nothing is sharded
  const comm::Communicator& world = loop_.job.ranks.World();
  std::vector<double> sums = {static_cast<double>(gathers_), static_cast<double>(gathers_ready_)};
  world.Sum(sums);
  return {.count = sums[0] / world.Size(), .ready = sums[1] / world.Size()};
}

report::RunFacts Reporter::Facts() const {
  const report::BannerFacts banner = Banner();
  report::RunFacts facts{.version = banner.version,
                         .commit = banner.commit,
                         .started = started_,
                         .first_step = loop_.progress.first,
                         .total_steps = loop_.progress.last,
                         .ranks = banner.ranks,
                         .threads = banner.threads,
                         .device = banner.device,
                         .precision = loop_.job.device.Precision(),
                         .grid = banner.grid,
                         .model = banner.model,
                         .data = banner.data,
                         .parameters = model::ParameterCount(loop_.plan.training.model.options),
                         .roof_flops = banner.roof_flops,
                         .planned_memory = banner.memory};
  facts.hosts = loop_.job.ranks.Hosts().Names();
  facts.preflight.facts = loop_.job.preflight.facts;
  facts.preflight.seconds = loop_.job.preflight.seconds;
  for (const tools::Warning& warning : loop_.job.preflight.warnings) {
    facts.preflight.warnings.emplace_back(warning.kind, warning.text);
  }
  if (MeetsGpus()) facts.gpu_transfers = comm::DescribeGpuTransfers();
  if (loop_.job.request.data.mixture.empty())
    facts.entropy_floor = loop_.data.Tokens().EntropyRate();
  AddDeck(loop_.job.request, facts);
  return facts;
}

report::Summary Reporter::SummarySoFar() {
  timeline_->End("the run ended");
  const std::string& folder = loop_.session->Folder();
  report::Summary summary;
  summary.traffic = GatherTraffic();
  summary.gathers = MeanGathers();
  summary.facts = Facts();
  const data::StagedCopies& staged = loop_.job.files.staging->Total();
  summary.staging = {.files = staged.files,
                     .bytes = staged.bytes,
                     .nodes = staged.nodes,
                     .seconds = staged.seconds,
                     .folder = loop_.job.files.staging->Folder()};
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
  const app::Device& device = loop_.job.device;
  const comm::Communicator& world = loop_.job.ranks.World();
  const device::MemoryTerms planned = train::PlanMemory(loop_.plan, world.Rank());
  // Resident bytes in shared memory include other ranks' data. This rank's own part is its tokens,
  // its copies for asynchronous checkpoints, and the memory in which it writes for other ranks.
  const std::int64_t shared = device.stream.OnGpu() ? 0 : report::SharedResidentBytes();
  const std::int64_t own = planned.tokens + planned.checkpoint_copy + writer_bytes;
  struct Use {
    std::int64_t planned, used, program, writer, others;  // bytes
    double compute;                                       // seconds
  };
  const std::vector<Use> uses = comm::GatherAll(
      world,
      std::vector<Use>{{planned.Total(), app::MemoryInUse(device), device.program_bytes,
                        writer_bytes, std::max(shared - own, std::int64_t{0}), own_compute_}});
  if (!world.IsRoot()) return;
  for (int rank = 0; rank < world.Size(); ++rank) {
    const Use& use = uses[static_cast<std::size_t>(rank)];
    const comm::GridShape at = comm::Locate(rank, grid_.Shape());
    summary.ranks.push_back({.rank = rank,
                             .host = HostOf(rank),
                             .pipeline = at.pipeline,
                             .data = at.data,
                             .context = at.context,
                             .tensor = at.tensor,
                             .planned_bytes = use.planned,
                             .used_bytes = use.used,
                             .program_bytes = use.program,
                             .writer_bytes = use.writer,
                             .others_bytes = use.others,
                             .seconds_compute = use.compute});
  }
}

// Memory is compared on the rank with the largest plan.
void Reporter::ComparePrediction(bool ended, report::Summary& summary) {
  const comm::Communicator& world = loop_.job.ranks.World();
  std::vector<double> sums(comm::kGroups);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = grid_.Traffic().SecondsWaited(static_cast<comm::Group>(i));
  }
  world.Sum(sums);
  comm::GroupSeconds waited{};
  for (std::size_t i = 0; i < sums.size(); ++i) waited[i] = sums[i] / world.Size();
  const bool grew = loop_.progress.first < loop_.plan.training.options.samples.ramp.steps;
  prediction_.Calibrate(ended && !grew, loop_.progress.deadline.Left(Seconds()));
  AtRoot(world, [&] {
    const auto [means, steps] = loop_.monitor->Means();
    summary.comparison = prediction_.Compare(means, steps, waited);
    if (grew) summary.comparison = {.not_available = "the batch grew (schedule.batch_ramp)"};
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
  record.sources = loop_.data.TokensOfSources(loop_.progress.step);
  if (!ending.ended) summary.reason = loop_.progress.stop_reason;
  FindRanks(ending.writer_bytes, summary);
  ComparePrediction(ending.ended, summary);
  summary.energy = energy_->EndSession();
  record.more = summary.energy.numbers;
  std::vector<std::string> lines = {report::ComparisonText(summary.comparison),
                                    EnergyLine(summary.energy),
                                    loop_.data.SourceSummary(loop_.progress.step)};
  lines.insert(lines.end(), ending.lines.begin(), ending.lines.end());
  loop_.monitor->Done(record, std::move(summary));
  for (const std::string& line : lines) {
    if (!line.empty()) loop_.monitor->Line(line);
  }
}

void Reporter::SayStopped() {
  const std::string& folder = loop_.session->Folder();
  const std::string& reason = loop_.progress.stop_reason;
  SayEvent("stop", reason);
  if (loop_.job.request.monitor.report) {
    loop_.monitor->Line("page    of the run so far: " + report::PageCommandText(folder));
  }
  loop_.monitor->Line(
      fmt::format("stopped by {} after step {}; checkpoint written: run it again with -r {}",
                  reason, report::WithThousands(loop_.progress.step), folder));
}

// SlowestRank: pipeline stages have different work, so a rank is compared with its own stage only.
Slowest SlowestRank(const comm::ProcessGrid& grid, double seconds) {
  const comm::Communicator& world = grid.World();
  const auto stage = static_cast<std::size_t>(grid.Coordinates().pipeline);
  const int stages = grid.Shape().pipeline;
  std::vector<double> means(static_cast<std::size_t>(stages));
  const int ranks = grid.Shape().Ranks() / stages;
  means[stage] = seconds / ranks;
  world.Sum(means);
  const double mean = means[stage];
  const double ratio = mean > 0 ? seconds / mean : 1;
  const bool slowest = ratio >= world.Max(ratio);
  Slowest result;
  result.rank = static_cast<int>(world.Min(std::int64_t{slowest ? world.Rank() : world.Size()}));
  std::vector<double> facts = {0, 0};
  if (world.Rank() == result.rank) facts = {seconds, mean};
  world.Sum(facts);
  result.seconds = facts[0];
  result.mean = facts[1];
  return result;
}

}  // namespace trireme::tasks
