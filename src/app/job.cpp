// Job: from the command line to a parsed deck, an opened device and the request for a plan.
#include "trireme/app/job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "attention.hpp"
#include "local_start.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/version.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/app/hang_bound.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/app/gpu_choice.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/device/precision.hpp"
#include "trireme/model/parameter_place.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::app {

const char* Job::Precision() const {
  return stream.fp8 ? "fp8" : stream.bf16 ? "bf16" : NameOf(dtype);
}

namespace {

// Opens the GPU if the ranks compute on theirs, and sets the arithmetic.
void OpenDevice(const GpuChoice& choice, Job& job) {
  const device::Arithmetic arithmetic =
      device::ArithmeticOf(job.options.machine.precision, choice.use);
  job.World().Together([&] {
    if (choice.use) {
      job.gpu = std::make_unique<device::Gpu>(choice.device);
      RequireCudnnIfAsked(job);
      job.gpu->Choose(job.options.machine.attention, job.options.machine.deterministic);
      job.gpu_staged = choice.staged;
      job.stream.gpu = &job.gpu->Context();
      RequireFixedOrder(job);
    }
    job.dtype = arithmetic.dtype;
    job.stream.bf16 = arithmetic.bf16_products;
    job.stream.fp8 = arithmetic.fp8_products;
    // A plan is of another machine.
    if (OnlyConverts(job.options.job.task) || job.options.job.task == Task::kPlan) return;
    device::CheckPrecision(job.options.machine.precision, job.stream, job.deck);
    if (!choice.use) return;
    const std::int64_t sites = model::kSitesABlock * job.options.model.Blocks();
    job.libraries = kernels::MakeLibraries(job.stream, static_cast<int>(sites));
    job.stream.libraries = job.libraries.get();
  });
}

// Name of what a rank runs: the program and its arguments.
std::string Identity(const CommandLine& line, const std::string& file) {
  return fmt::format("Trireme {} ({}), build {}, file {}, -i '{}' -r '{}'{} {}", Version(),
                     Commit(), BuildId(), file, line.deck, line.resume,
                     line.validate_only ? " -v" : "", fmt::join(line.overrides, " "));
}

// Collective. A rank with another program or other arguments would compute something else.
void RequireOneProgram(const comm::Runtime& runtime, const CommandLine& line) {
  const comm::Communicator& world = runtime.World();
  const std::string file = tools::ProgramFile(runtime.Node());
  std::string mine;
  world.Together([&] { mine = Identity(line, file); });
  const std::string of_root = world.Broadcast(mine);
  if (world.Min(std::int64_t{mine == of_root ? 1 : 0}) == 1) return;
  tools::Tally others;
  if (mine != of_root) others.Add("others", mine, world.Rank());
  others = tools::MergeOnRoot(world, std::move(others));
  const std::vector<tools::Tally::Said>& said = others.Of("others");
  const std::string where = world.Broadcast(
      said.empty() ? "" : tools::NameHosts(said.front().ranks, runtime.Hosts()));
  world.Together([&] {
    if (mine == of_root) return;
    throw InputError(
        fmt::format(
            "another program or command line than rank 0's on {}:\n  {}\n  rank 0 on {}: {}", where,
            mine, runtime.Hosts().First(), of_root),
        "Start all ranks with one file and the same arguments.");
  });
}

// Where a report of a set-up that hangs goes: the folder that the deck names, or the one that -r
// continues; empty: neither, the report goes into the current folder.
std::string RunFolderBeforeLock(const Job& job) {
  if (job.options.job.output_given) return job.options.job.output;
  const std::filesystem::path resumed(job.line->resume), above = resumed.parent_path();
  return (above.filename() == "checkpoints" ? above.parent_path() : resumed).string();
}

}  // namespace

Job MakeJob(const comm::Runtime& runtime, const CommandLine& line, const deck::Schema& schema,
            device::StopSignals& signals) {
  const comm::Communicator& world = runtime.World();
  Job job;
  job.start_seconds = Seconds();
  job.runtime = &runtime;
  job.line = &line;
  job.signals = &signals;
  RequireOneProgram(runtime, line);
  Sources sources = ShareSources(world, schema, line);
  world.Together([&] {
    job.deck = ParseDeck(schema, line, sources);
    job.options = ReadAll(job.deck);
    job.schema = &schema;
    job.start = std::move(sources.start);
    job.sources = std::move(sources);
    // A run's go to its monitor.
    if (world.IsRoot() && job.options.job.task != Task::kTrain) PrintWarnings(job.start);
  });
  LookForLocal(job);
  if (const std::string folder = RunFolderBeforeLock(job); !folder.empty()) {
    runtime.Watch().WriteInto(folder);
  }
  // Contexts of GPUs and their libraries are where a node's faults show first.
  ArmSetUp(runtime, job.options.machine.hang_timeout);
  const GpuChoice choice = ChooseGpu(runtime, job.options.machine, job.deck);
  job.placement = PlaceThreads(runtime, job.options.machine, choice.use);
  job.stream.threads = job.placement.threads;
  OpenDevice(choice, job);
  runtime.Watch().Disarm();  // a training arms it again
  job.program_bytes = MemoryInUse(job) + (job.stream.OnGpu() ? 0 : kLoadedLater);
  return job;
}

std::int64_t MemoryInUse(const Job& job) {
  return job.stream.OnGpu() ? job.gpu->Context().memory_bytes - device::FreeBytes(job.stream)
                            : report::PeakResidentBytes();
}

tools::Findings LookAround(const Job& job, bool whole) {
  const DeckOptions& options = job.options;
  tools::Subject subject{.output = options.job.output,
                             .data = {},
                             .cores = job.signals->UsableCores(),
                             .threads = job.stream.threads,
                             .card = job.gpu == nullptr ? "" : job.gpu->Context().address};
  if (options.data.mixture.empty()) subject.data.push_back(options.data.file);
  for (const data::MixtureFile& file : options.data.mixture) subject.data.push_back(file.path);
  constexpr std::size_t kMostFiles = 8;
  if (subject.data.size() > kMostFiles) subject.data.resize(kMostFiles);
  return tools::LookAround({job.World(), job.runtime->Node(), job.runtime->Hosts()}, subject,
                               whole);
}

train::MachineFacts FactsOf(const Job& job) {
  return {.dtype = job.dtype, .stream = job.stream, .gpu_staged = job.gpu_staged};
}

namespace {

// Steps of a continued run that keeps them; 0: as its epochs say, also if the windows have changed.
std::int64_t PlannedSteps(const Job& job) {
  const std::optional<RunRecord>& record = job.start.record;
  if (!record || job.line->resume.empty() || !record->planned) return 0;
  const data::Options& now = job.options.data;
  const bool same = record->planned->epochs == job.options.schedule.epochs &&
                    record->length == now.sequence_length && record->stride == now.stride &&
                    record->batch == now.batch;
  return same ? record->planned->steps : 0;
}

}  // namespace

train::Request RequestOf(const Job& job, const train::TokenFacts& tokens) {
  return {.options = job.options,
          .deck = job.deck,
          .ranks = job.World().Size(),
          .tokens = tokens,
          .machine = FactsOf(job),
          .async_checkpoints = job.options.checkpoint.async,
          .origin = OriginOf(job, tokens),
          .steps = PlannedSteps(job)};
}

namespace {

// Collective. Leaves out the first candidate, whose bytes are damaged, or the local checkpoint.
void PassOver(Job& job, const checkpoint::DamagedError& damage) {
  Start& start = job.start;
  if (start.local != nullptr) return LeaveLocal(job, damage.what());
  start.passed_over.emplace_back(damage.what());
  start.damaged.push_back(start.candidates.front());
  start.candidates.erase(start.candidates.begin());
  RunRecord record = ReadFirst(job);
  job.World().Together([&] { RequireSameModel(*start.record, record); });
  start.record = std::move(record);
}

std::string FirstLineOf(const std::string& text) { return text.substr(0, text.find('\n')); }

// Throws for a run whose last checkpoint is damaged, too; again what was thrown for a checkpoint
// that was named alone. Collective.
[[noreturn]] void ThrowNoneWhole(const Job& job, const checkpoint::DamagedError& damage) {
  const std::string& path =
      job.start.weights_alone ? job.options.checkpoint.start_from : job.line->resume;
  if (IsFirst(job, path)) throw damage;
  std::string text = path + ": no checkpoint of the run is whole";
  for (const std::string& other : job.start.passed_over) text += "\n  " + FirstLineOf(other);
  text += "\n  " + FirstLineOf(damage.what());
  throw AgreedError(damage.Code(), text,
                    "Restore one from a copy, or train anew into another job.output.");
}

}  // namespace

ExitCode FromNewestValid(Job& job, const std::function<ExitCode()>& body) {
  std::optional<checkpoint::DamagedError> damage;
  while (true) {
    try {
      if (damage) PassOver(job, *std::exchange(damage, std::nullopt));
      return body();
    } catch (const checkpoint::DamagedError& error) {
      if (job.start.candidates.size() <= 1 && job.start.local == nullptr) {
        ThrowNoneWhole(job, error);
      }
      damage = error;
    }
  }
}

std::string ReadNewest(const Job& job, const std::function<void(const std::string&)>& read) {
  constexpr int kMostVanished = 100;
  const Task task = job.options.job.task;
  const bool changes = task == Task::kTrain && !job.line->validate_only;
  Start start = job.start;
  for (int vanished = 0;; ++vanished) {
    const std::string checkpoint = start.candidates.front();
    try {
      read(checkpoint);
      return checkpoint;
    } catch (const checkpoint::VanishedError&) {
      if (changes || vanished == kMostVanished) throw;
    }
    FindAgain(job.World(), *job.line, job.deck, start);
    job.World().Together([&] { RequireSameModel(*job.start.record, *start.record); });
  }
}

void CheckMemory(const Job& job, const device::MemoryTerms& planned,
                 const comm::ProcessGrid& grid) {
  const comm::NodeDemand demand = comm::DemandOf(job.runtime->Node(), planned, job.stream);
  job.World().Together(
      [&] { comm::CheckNodeMemory(demand, grid, job.options.parallel.canonical.On()); });
}

bool HasMemory(const Job& job, const device::MemoryTerms& planned) {
  const comm::NodeDemand demand = comm::DemandOf(job.runtime->Node(), planned, job.stream);
  return job.World().Min(std::int64_t{demand.Fits()}) == 1;
}

void UseGpu(const Job& job, comm::ProcessGrid& grid) {
  if (!job.stream.OnGpu()) return;
  grid.UseGpu(job.stream, job.gpu_staged, job.options.parallel.chunks);
}

void UseGpu(const Job& job, const device::MemoryTerms& planned, comm::ProcessGrid& grid) {
  UseGpu(job, grid);
  if (!job.stream.OnGpu() || planned.communicators == 0) return;
  device::MemoryTerms rest = planned;
  rest.communicators = 0;
  comm::NodeDemand demand = comm::DemandOf(job.runtime->Node(), rest, job.stream);
  demand.available.source += fmt::format(" beside {}'s communicators (planned: {} MiB a rank)",
                                         comm::GpuTransferLibrary(), planned.communicators >> 20);
  job.World().Together(
      [&] { comm::CheckNodeMemory(demand, grid, job.options.parallel.canonical.On()); });
}

void StopIfAsked(const Job& job) {
  if (job.World().Max(std::int64_t{job.signals->Received()}) == 0) return;
  throw AgreedError(
      ExitCode::kStopped,
      "stopped by a signal during the set-up: nothing was computed yet; run it again");
}

ExitCode SayValid(const Job& job) {
  if (job.World().IsRoot()) fmt::print("valid: everything was constructed; nothing was computed\n");
  return ExitCode::kDone;
}

}  // namespace trireme::app
