// Job: from the command line to a parsed deck, an opened device and the request for a plan.
#include "trireme/app/job.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "trireme/app/run_record.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/program.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/device/options.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::app {

// Kernels of attention that a deck asks for.

// InputError with the deck's line where run.attention = cudnn and cuDNN cannot compute it.
void RequireCudnnIfAsked(const Job& job);
// InputError where a training is to be deterministic and cuDNN's backward pass is not, on this GPU.
void RequireFixedOrder(const Job& job);

// The start of a training job from a local checkpoint, if one is newer than the run folder's.

// Collective. Whether the path is that of the first candidate, a checkpoint that was named alone.
bool IsFirst(const Job& job, const std::string& path);

// Collective. What the first candidate's run.json says.
RunRecord ReadFirst(const Job& job);

// Collective, for a deck that is read. With checkpoint.local and -r RUN: looks on the nodes, and
// lets the job start from what is there; notes why it does not.
void LookForLocal(Job& job);

// Collective. Goes back to the first candidate; `why` is noted with the steps that are lost.
void LeaveLocal(Job& job, const std::string& why);

// The kernels that compute a deck's attention, and why.

namespace {

// Why cuDNN computes no attention of this deck's training; "" if it may.
std::string WhyNotCudnn(const DeckOptions& options) {
  constexpr int kWidest = 256, kPiece = 8;  // cuDNN's, of a head
  const device::Precision precision = options.machine.precision;
  if (std::string why = kernels::WhyNoCudnn(); !why.empty()) return why;
  if (precision != device::Precision::kBf16 && precision != device::Precision::kFp8) {
    return fmt::format("run.precision = {}", device::NameOf(precision));
  }
  if (ReadsTraining(options.job.task) && options.model.attention_dropout > 0) {
    return fmt::format("model.attention_dropout = {}", options.model.attention_dropout);
  }
  if (options.model.Translates()) return "padding of model.kind = encoder_decoder";
  const std::int64_t blocks = 2 * std::int64_t{options.comm.context};
  if (blocks > 2 && options.data.document_mask) {
    return fmt::format("grid.context = {} cuts sequences with data.document_mask = yes",
                       options.comm.context);
  }
  if (blocks > 2 && options.data.sequence_length % blocks != 0) {
    return fmt::format("grid.context = {} cuts sequences of {} into unequal blocks",
                       options.comm.context, options.data.sequence_length);
  }
  if (options.model.head_dim % kPiece != 0 || options.model.head_dim > kWidest) {
    return fmt::format("heads of {}, no multiple of {} up to {}", options.model.head_dim, kPiece,
                       kWidest);
  }
  return {};
}

}  // namespace

void RequireCudnnIfAsked(const Job& job) {
  if (job.options.machine.attention != device::AttentionKernels::kCudnn) return;
  const std::string why = WhyNotCudnn(job.options);
  if (why.empty()) return;
  throw job.deck.Complain("run.attention", "cuDNN cannot compute this attention: " + why,
                          "With auto it computes what it can, and our own kernels the rest.");
}

void RequireFixedOrder(const Job& job) {
  const DeckOptions& options = job.options;
  if (!ReadsTraining(options.job.task) || !options.machine.deterministic) return;
  if (options.machine.attention == device::AttentionKernels::kOwn) return;
  if (!WhyNotCudnn(options).empty()) return;
  const std::string why = kernels::WhyNoFixedOrder(job.stream, options.data.sequence_length);
  if (why.empty()) return;
  throw job.deck.Complain("run.deterministic", why,
                          "Install a newer cuDNN, or set run.attention = own (our own kernels, "
                          "slower) or run.deterministic = no (runs differ in their last bits).");
}

std::string DescribeAttention(const Job& job) {
  if (!job.stream.OnGpu()) return {};
  if (job.options.machine.attention == device::AttentionKernels::kOwn) {
    return "attention: our own (run.attention = own)";
  }
  const std::string why = WhyNotCudnn(job.options);
  if (why.empty()) {
    return fmt::format("attention: cuDNN's{} where it serves, else our own{}",
                       job.options.data.document_mask ? " by document" : "",
                       job.options.machine.deterministic
                           ? ""
                           : ", its gradients in no fixed order (run.deterministic = no)");
  }
  return fmt::format("attention: our own ({})", why);
}

// Bounds of the watchdogs, from the stated one and from measured times.

namespace {

double OfSteps(double stated, const Deadline& longest) {
  if (longest.LongestStep() <= 0) return std::max(kSetUpBound, stated);
  if (stated > 0) return stated;
  return std::max(kLeastBound, kStepsABound * longest.LongestStep());
}

}  // namespace

double HangBound(comm::Phase phase, double stated, const Deadline& longest) {
  const double steps = OfSteps(stated, longest);
  switch (phase) {
    case comm::Phase::kStep:
      return steps;
    case comm::Phase::kValidation:  // every round of it is progress
      return stated > 0 ? stated : std::max(steps, kLongBound * longest.LongestValidation());
    case comm::Phase::kCheckpoint:
      return std::max(
          {steps, kLongBound * longest.LongestCheckpoint(), stated > 0 ? 0 : kDiskBound});
    case comm::Phase::kSetUp:
    case comm::Phase::kEnd:
      break;
  }
  return std::max(kSetUpBound, stated);
}

void ArmSetUp(const comm::Runtime& runtime, double stated) {
  runtime.Watch().Arm(comm::Phase::kSetUp, 0, std::max(kSetUpBound, stated));
}

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
  const std::string where =
      world.Broadcast(said.empty() ? "" : tools::NameHosts(said.front().ranks, runtime.Hosts()));
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
  const comm::Communicator& world = grid.World();
  device::MemoryTerms rest = planned;
  rest.communicators = 0;
  comm::NodeDemand demand = comm::DemandOf(world.SplitNode(), rest, job.stream);
  demand.available.source += fmt::format(" beside {}'s communicators (planned: {} MiB a rank)",
                                         comm::GpuTransferLibrary(), planned.communicators >> 20);
  world.Together([&] { comm::CheckNodeMemory(demand, grid, job.options.parallel.canonical.On()); });
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

// Model, ranks, grid and sharding of a resumed run against those of its checkpoint.

void RequireSameModel(const RunRecord& was, const RunRecord& now) {
  if (was.json.value("model", nlohmann::json()) == now.json.value("model", nlohmann::json()))
    return;
  throw InputError(fmt::format("{}: another model than that of {}", now.path, was.path),
                   "Name one checkpoint with -r.");
}

std::string LayoutChange(const RunRecord& record, const nlohmann::json& now) {
  std::string changes;
  for (const char* name : {"ranks", "grid", "sharding"}) {
    if (!record.json.contains(name) || !now.contains(name)) continue;
    const nlohmann::json &was = record.json.at(name), &is = now.at(name);
    if (was == is) continue;
    const auto text = [](const nlohmann::json& value) {
      return value.is_string() ? value.get<std::string>() : value.dump();
    };
    changes +=
        fmt::format("{}{} {} after {}", changes.empty() ? "" : "; ", name, text(is), text(was));
  }
  return changes;
}

// Start of a training job from a local checkpoint.

namespace {

std::string Instead(const RunRecord& record, std::int64_t local_step) {
  const std::int64_t lost = local_step - record.step;
  return fmt::format("; the run folder's of step {} is taken{}", record.step,
                     lost > 0
                         ? fmt::format(", {} {} lost", lost, lost == 1 ? "step is" : "steps are")
                         : std::string());
}

// Collective. A local checkpoint that the records tell of and of which no file is left.
void SayLost(Job& job) {
  std::int64_t told = 0;
  job.World().Together([&] {
    if (!job.World().IsRoot()) return;
    told = report::LastCheckpoint(job.line->resume, "local checkpoint").value_or(0);
  });
  told = job.World().Max(told);
  if (told <= job.start.record->step) return;
  job.start.passed_over.push_back(
      fmt::format("the local checkpoint of step {}: it is on none of these hosts{}", told,
                  Instead(*job.start.record, told)));
}

}  // namespace

bool IsFirst(const Job& job, const std::string& path) {
  std::error_code error;
  const bool first = job.World().IsRoot() &&
                     std::filesystem::equivalent(path, job.start.candidates.front(), error) &&
                     !error;
  return job.World().Max(std::int64_t{first}) == 1;
}

RunRecord ReadFirst(const Job& job) {
  const std::string& path = job.start.candidates.front();
  const nlohmann::json run = checkpoint::ReadRun(job.World(), path);
  RunRecord record;
  job.World().Together([&] { record = ParseRunRecord(run, path + "/run.json"); });
  return record;
}

void LookForLocal(Job& job) {
  Start& start = job.start;
  const std::string& folder = job.options.checkpoint.local;
  if (job.options.job.task != Task::kTrain || folder.empty() || start.weights_alone ||
      !start.record) {
    return;
  }
  const nlohmann::json& newest = start.record->json;
  const std::string id = deck::TextOf(newest, kRunName);
  if (id.empty() || IsFirst(job, job.line->resume)) return;
  const checkpoint::LocalSearch search = checkpoint::FindLocal(
      {job.World(), job.runtime->Hosts()}, {.folder = folder, .id = id, .session = {}},
      {.step = start.record->step,
       .sequence = deck::WholeNumber(newest.value("sequence", nlohmann::json())).value_or(0),
       .session = deck::TextOf(newest, kSessionName)});
  for (const auto& [step, why] : search.passed_over) {
    start.passed_over.push_back(
        why + (search.found == nullptr && step > 0 ? Instead(*start.record, step) : ""));
  }
  if (search.found == nullptr && search.passed_over.empty()) SayLost(job);
  if (search.found == nullptr) return;
  job.World().Together([&] {
    RunRecord record = ParseRunRecord(
        search.found->Run(),
        fmt::format("the local checkpoint of step {}: run.json", search.found->Step()));
    RequireSameModel(*start.record, record);
    start.record = std::move(record);
  });
  start.local = search.found;
}

void LeaveLocal(Job& job, const std::string& why) {
  Start& start = job.start;
  const std::int64_t step = start.local->Step();
  start.local.reset();
  start.record = ReadFirst(job);
  start.passed_over.push_back(why + Instead(*start.record, step));
}

}  // namespace trireme::app
