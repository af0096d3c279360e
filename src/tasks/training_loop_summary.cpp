// TrainingLoop: the spread of the ranks, and what summary.json tells of a session.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "checkpoints.hpp"
#include "step_prediction.hpp"
#include "timeline.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/report/tensorboard.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/training_loop.hpp"

namespace trireme::tasks {

// The order of a run's page: which runs get one, and how long that may take.

std::optional<report::PageOrder> OrderPage(const app::Job& job) {
  constexpr double kMostSeconds = 60;
  constexpr double kMargin = 20;  // seconds before the job's end, in which the program is gone
  constexpr double kLeast = 5;    // seconds; with less it is not begun
  if (job.ended_run.empty() || !job.World().IsRoot() || !job.options.monitor.report) return {};
  double seconds = kMostSeconds;
  if (const auto end = app::ReadBatchJob().end_unix_seconds) {
    seconds = std::min(seconds, *end - UnixSeconds() - kMargin);
  }
  return report::PageOrder{.folder = job.ended_run, .seconds = seconds < kLeast ? 0 : seconds};
}

namespace {

constexpr int kSumsATransfer = 5;
constexpr int kNumbersARank = 6;  // bytes, as RankUse has them, and seconds

template <typename Visit>
void EachTransfer(Visit visit) {
  for (int group = 0; group < comm::kGroups; ++group) {
    for (int transfer = 0; transfer < comm::kTransfers; ++transfer) {
      visit(static_cast<comm::Group>(group), static_cast<comm::Transfer>(transfer));
    }
  }
}

// Whether a key has its default, however that is written.
bool IsDefault(const deck::Key& key, const std::string& value) {
  if (value == key.fallback) return true;
  if (key.kind != deck::KeyKind::kReal) return false;
  return std::strtod(value.c_str(), nullptr) == std::strtod(key.fallback.c_str(), nullptr);
}

void AddDeck(const app::Job& job, report::RunFacts& facts) {
  for (const auto& [section, help] : job.schema->Sections()) {
    for (const auto& [name, value] : job.deck.Section(section)) {
      const std::string key = fmt::format("{}.{}", section, name);
      facts.deck.emplace_back(key, value);
      if (!IsDefault(*job.schema->Find(key), value)) facts.deck_given.push_back(key);
    }
  }
}

}  // namespace

const std::string& TrainingLoop::HostOf(int rank) const { return job_.runtime->Hosts().Of(rank); }

// The rank that uses most memory, the lowest of several.
void TrainingLoop::FindMemory(report::Record& record) const {
  const comm::Communicator& world = job_.World();
  const std::int64_t mine = app::MemoryInUse(job_);
  record.memory_bytes = world.Max(mine);
  record.memory_rank = static_cast<int>(
      world.Min(std::int64_t{mine == record.memory_bytes ? world.Rank() : world.Size()}));
  record.memory_host = HostOf(record.memory_rank);
}

void TrainingLoop::FindRanks(report::Summary& summary) const {
  const comm::Communicator& world = job_.World();
  std::vector<double> numbers(static_cast<std::size_t>(world.Size()) * kNumbersARank);
  double* mine = numbers.data() + static_cast<std::ptrdiff_t>(world.Rank()) * kNumbersARank;
  const device::MemoryTerms planned = train::PlanMemory(plan_, world.Rank());
  const std::int64_t writes = checkpoints_->OwnBytes();
  // Shared memory: the rank's part of the tokens, of asynchronous checkpoints its copies, of others
  // what a rank that writes takes for all.
  const std::int64_t shared = job_.stream.OnGpu() ? 0 : report::SharedResidentBytes();
  const std::int64_t own = planned.tokens + planned.checkpoint_copy + writes;
  mine[0] = static_cast<double>(planned.Total());
  mine[1] = static_cast<double>(app::MemoryInUse(job_));
  mine[2] = static_cast<double>(job_.program_bytes);
  mine[3] = static_cast<double>(writes);
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

// Transfers of this session's steps, of all ranks: a row for each kind that occurred.
std::vector<report::TrafficRow> TrainingLoop::GatherTraffic() const {
  const comm::Communicator& world = job_.World();
  if (world.Size() == 1) return {};
  const comm::Ledger ledger = grid_.Traffic();  // as it is before the transfers in here
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
  const double* sum = sums.data();
  const double* most = longest.data();
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

report::Gathers TrainingLoop::MeanGathers() const {
  if (grid_.Shard().Size() == 1) return {};  // no gather of parameters that one rank has whole
  const comm::Communicator& world = job_.World();
  std::vector<double> sums = {static_cast<double>(gathers_), static_cast<double>(gathers_ready_)};
  world.Sum(sums);
  return {.count = sums[0] / world.Size(), .ready = sums[1] / world.Size()};
}

report::RunFacts TrainingLoop::Facts() const {
  const report::BannerFacts banner = Banner();
  report::RunFacts facts{.version = banner.version,
                         .commit = banner.commit,
                         .started = started_,
                         .first_step = first_step_,
                         .total_steps = schedule_.Last(),
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
  facts.hosts = job_.runtime->Hosts().Names();
  facts.preflight.facts = job_.preflight.facts;
  facts.preflight.seconds = job_.preflight.seconds;
  for (const tools::Warning& warning : job_.preflight.warnings) {
    facts.preflight.warnings.emplace_back(warning.kind, warning.text);
  }
  if (MeetsGpus()) facts.gpu_transfers = comm::DescribeGpuTransfers();
  if (job_.options.data.mixture.empty()) facts.entropy_floor = tokens_.EntropyRate();
  AddDeck(job_, facts);
  return facts;
}

// The rank with the largest plan stands for memory.
void TrainingLoop::ComparePrediction(bool ended, report::Summary& summary) {
  const comm::Communicator& world = job_.World();
  std::vector<double> sums(comm::kGroups);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = grid_.Traffic().SecondsWaited(static_cast<comm::Group>(i));
  }
  world.Sum(sums);
  comm::GroupSeconds waited{};
  for (std::size_t i = 0; i < sums.size(); ++i) waited[i] = sums[i] / world.Size();
  prediction_->Calibrate(ended, deadline_.Left(Seconds()));
  world.Together([&] {
    if (!world.IsRoot()) return;
    const auto [means, steps] = monitor_->Means();
    summary.comparison = prediction_->Compare(means, steps, waited);
    const auto largest = std::ranges::max_element(summary.ranks, {}, &report::RankUse::Foreseen);
    summary.comparison.planned_bytes = largest->Foreseen();
    summary.comparison.used_bytes = largest->Taken();
  });
}

// Before the test: the transfers of the steps alone.
report::Summary TrainingLoop::SummarySoFar() const {
  report::Summary summary;
  summary.traffic = GatherTraffic();
  summary.gathers = MeanGathers();
  summary.facts = Facts();
  const data::StagedCopies& staged = job_.staging->Total();
  summary.staging = {.files = staged.files,
                     .bytes = staged.bytes,
                     .nodes = staged.nodes,
                     .seconds = staged.seconds,
                     .folder = job_.staging->Folder()};
  summary.files = {{"run folder", folder_},
                   {"checkpoint", folder_ + "/checkpoints/latest"},
                   {"metrics", folder_ + "/metrics.jsonl"},
                   {"log", folder_ + "/log.txt"}};
  std::error_code ignored;
  if (std::filesystem::exists(folder_ + "/checkpoints/best", ignored)) {
    summary.files.insert(summary.files.begin() + 2, {"best", folder_ + "/checkpoints/best"});
  }
  return summary;
}

// TrainingLoop: TensorBoard's files, and the histograms in them.

namespace {

// Sections of the deck that say what was trained, and how.
constexpr const char* kHyperparameters[] = {"model",    "optimizer", "schedule", "data",
                                            "pipeline", "grid",      "run"};

}  // namespace

// Rank 0. Nothing that fails here ends the run.
void TrainingLoop::AttachTensorBoard(const report::BannerFacts& banner) {
  if (!job_.options.monitor.tensorboard || !job_.World().IsRoot()) return;
  report::BoardFacts facts;
  facts.layout = report::BannerText(banner);
  for (const char* section : kHyperparameters) {
    for (const auto& [key, value] : job_.deck.Section(section)) {
      facts.deck.emplace_back(fmt::format("{}.{}", section, key), value);
    }
  }
  events_ = std::make_shared<report::EventLog>(report::EventLog::Setup{
      .folder = folder_ + "/tensorboard", .continues = continues_, .resume_step = step_});
  auto sink = std::make_unique<report::TensorBoardSink>(events_, std::move(facts));
  try {
    sink->Begin();
  } catch (const Error& error) {
    monitor_->Warn(fmt::format("{}; the run goes on without it", error.what()));
  }
  monitor_->Attach(std::move(sink));
}

// No transfer and no time of it counts as the steps'.
std::vector<report::NamedHistogram> TrainingLoop::HistogramsOf(const checkpoint::State& state,
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

// Gradients are gone once the weights have moved.
void TrainingLoop::AskForHistograms() {
  const std::int64_t every = job_.options.monitor.histogram_every_steps;
  if (every == 0 || (step_ + 1) % every != 0) return;
  training_step_.BeforeNextUpdate([this](std::int64_t targets) {
    gradient_histograms_ =
        HistogramsOf(state_.GradientState(), "gradients/", static_cast<double>(targets));
  });
}

void TrainingLoop::AddHistograms() {
  const std::int64_t every = job_.options.monitor.histogram_every_steps;
  if (every == 0 || step_ % every != 0) return;
  training_step_.BeforeNextUpdate({});  // of a bad step, whose gradients nobody has seen
  const auto weights = HistogramsOf(state_.CheckpointState(), "weights/", 1);
  const auto gradients = std::exchange(gradient_histograms_, {});
  if (events_ == nullptr) return;
  events_->AddHistograms(step_, weights);
  events_->AddHistograms(step_, gradients);
}

// TrainingLoop: its timeline, with the facts that a reader of the file wants.

void TrainingLoop::MakeTimeline() {
  const parallel::PipelineShape& stages = state_.Net().Stages().Shape();
  nlohmann::json facts = {{"program", "Trireme " + Version()},
                          {"grid", comm::Describe(grid_.Shape())},
                          {"stages", stages.stages},
                          {"schedule", parallel::NameOf(stages.kind)},
                          {"chunks", stages.chunks},
                          {"micro_batches", stages.micro_batches},
                          {"device", device::NameOf(job_.stream.Where())}};
  if (job_.stream.OnGpu()) {
    facts["gpu"] =
        "slices of the thread GPU are times between events in its queue; the steps of a recorded "
        "graph (run.graphs) are one slice each";
  }
  timeline_ = std::make_unique<Timeline>(
      Timeline::Setup{.runtime = *job_.runtime,
                      .grid = grid_,
                      .monitor = *monitor_,
                      .stream = job_.stream,
                      .window = job_.options.monitor.trace_steps,
                      .kernels = job_.options.monitor.trace_kernels,
                      .step = step_,
                      .total = schedule_.Last(),
                      .path = folder_ + "/trace.json.gz",
                      .facts = facts,
                      .watch = [this] { Watch(comm::Phase::kCheckpoint, step_); }});
}

// EnergyLine: the closing line about energy.

std::string EnergyLine(const report::Energy& energy) {
  if (!energy.not_available.empty()) return "energy  not available: " + energy.not_available;
  const auto number = [&energy](std::string_view name) {
    for (const auto& [key, value] : energy.numbers) {
      if (key == name) return value;
    }
    return std::nan("");
  };
  const auto text = [&energy](std::string_view name) {
    for (const auto& [key, value] : energy.texts) {
      if (key == name) return value;
    }
    return std::string();
  };
  std::string line =
      fmt::format("energy  {} of {}, {} a node", report::WithUnit(number("joules"), "J"),
                  text("covers"), report::WithUnit(number("watts_per_node"), "W"));
  if (const double each = number("joules_per_token"); !std::isnan(each)) {
    line += fmt::format(", {:.3g} J a token", each);
  }
  if (const double busy = number("gpu_utilisation"); !std::isnan(busy)) {
    line += fmt::format("; GPUs {:.0f}% busy, {} of the fullest in use", 100 * busy,
                        report::AsBytes(std::llround(number("gpu_memory_bytes"))));
  }
  constexpr double kSaid = 0.5;  // seconds
  if (const double lost = number("seconds_lost"); lost >= kSaid) {
    line += fmt::format("; no readings for {} of {}", report::AsClock(lost),
                        report::AsClock(lost + number("seconds")));
  }
  const std::string leaves_out = text("leaves_out");
  if (!leaves_out.empty()) line += "\n        without " + leaves_out;
  return line;
}

}  // namespace trireme::tasks
