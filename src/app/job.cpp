// Job: makes a job from the command line (deck, device, start), and functions that tasks share.
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

// Which kernels compute attention, and why.

namespace {

// The reason why cuDNN cannot compute this deck's attention; "" if it can.
std::string WhyNotCudnn(const DeckOptions& options) {
  constexpr int kWidest = 256, kPiece = 8;  // cuDNN's limit and unit of head_dim
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

// Throws InputError with the deck's line if run.attention = cudnn but cuDNN cannot compute it.
void RequireCudnnIfAsked(const Request& request) {
  if (request.machine.attention != device::AttentionKernels::kCudnn) return;
  const std::string why = WhyNotCudnn(request);
  if (why.empty()) return;
  throw request.deck.Complain("run.attention", "cuDNN cannot compute this attention: " + why,
                              "With auto it computes what it can, and our own kernels the rest.");
}

// Throws InputError if training must be deterministic but cuDNN's backward pass here is not.
void RequireFixedOrder(const Request& request, const Device& device) {
  const DeckOptions& options = request;
  if (!ReadsTraining(options.job.task) || !options.machine.deterministic) return;
  if (options.machine.attention == device::AttentionKernels::kOwn) return;
  if (!WhyNotCudnn(options).empty()) return;
  const std::string why = kernels::WhyNoFixedOrder(device.stream, options.data.sequence_length);
  if (why.empty()) return;
  throw request.deck.Complain(
      "run.deterministic", why,
      "Install a newer cuDNN, or set run.attention = own (our own kernels, "
      "slower) or run.deterministic = no (runs differ in their last bits).");
}

}  // namespace

std::string DescribeAttention(const Request& request, const Device& device) {
  if (!device.stream.OnGpu()) return {};
  if (request.machine.attention == device::AttentionKernels::kOwn) {
    return "attention: our own (run.attention = own)";
  }
  const std::string why = WhyNotCudnn(request);
  if (why.empty()) {
    return fmt::format("attention: cuDNN's{} where it serves, else our own{}",
                       request.data.document_mask ? " by document" : "",
                       request.machine.deterministic
                           ? ""
                           : ", its gradients in no fixed order (run.deterministic = no)");
  }
  return fmt::format("attention: our own ({})", why);
}

double HangBound(comm::Phase phase, double stated, const Deadline& longest) {
  const double set_up = std::max(kSetUpBound, stated), step = longest.LongestStep();
  const double steps = step <= 0    ? set_up
                       : stated > 0 ? stated
                                    : std::max(kLeastBound, kStepsABound * step);
  switch (phase) {
    case comm::Phase::kStep:
      return steps;
    case comm::Phase::kValidation:  // each round counts as progress
      return stated > 0 ? stated : std::max(steps, kLongBound * longest.LongestValidation());
    case comm::Phase::kCheckpoint:
      return std::max(
          {steps, kLongBound * longest.LongestCheckpoint(), stated > 0 ? 0 : kDiskBound});
    default:
      return set_up;
  }
}

void ArmSetUp(const comm::Runtime& runtime, double stated) {
  runtime.Watch().Arm(comm::Phase::kSetUp, 0, std::max(kSetUpBound, stated));
}

const char* Device::Precision() const {
  return stream.fp8 ? "fp8" : stream.bf16 ? "bf16" : NameOf(dtype);
}

namespace {

// Whether this CPU's bf16 products are clearly slower than fp32 ones of rounded operands: on the
// rank that is slowest at each. A start that is measured anew, on the same CPUs, should decide
// alike: hence a margin. Keeps the speed of the faster way. Collective; all ranks measure at once,
// as they compute.
bool Bf16IsSlower(const comm::Communicator& world, Device& device) {
  constexpr double kMargin = 1.1;
  const auto speed = [&](bool by_fp32) {
    device::Stream way = device.stream;
    way.bf16_by_fp32 = by_fp32;
    double flops = 0;
    world.Together([&] { flops = kernels::MeasureRoof(way, device.dtype); });
    return flops;
  };
  const double rounded = speed(true), native = speed(false);
  const bool slower = world.Min(rounded) > kMargin * world.Min(native);
  device.roof_flops = slower ? rounded : native;
  return slower;
}

// Chooses how a CPU computes products in bf16 (run.bf16_products). Collective.
void ChooseBf16Products(const Request& request, const comm::Communicator& world, const Start& start,
                        Device& device) {
  using device::Bf16Products;
  const Bf16Products asked = request.machine.bf16_products;
  if (!device.stream.bf16 || asked == Bf16Products::kNative) return;
  const std::string own = device::Bf16Instructions();
  // A run goes on as it began, so that its bits stay; with other instructions native products may
  // have become the slower ones.
  const auto recorded = [&](const char* member) {
    const bool goes_on = start.record && !start.weights_alone;
    return goes_on ? deck::TextOf(start.record->json, member) : std::string();
  };
  const bool native =
      recorded(kBf16Products) == kNative && recorded("instruction_set") == device::InstructionSet();
  if (asked == Bf16Products::kFp32) {
    device.why_fp32 = "run.bf16_products = fp32";
  } else if (!comm::TrueEverywhere(world, !own.empty())) {
    device.why_fp32 = "this CPU has no bf16 instructions";
  } else if (recorded(kBf16Products) == kByFp32) {
    device.why_fp32 = "as the run began";
  } else if (!comm::TrueEverywhere(world, native) && !comm::TrueEverywhere(world, own == "AMX") &&
             Bf16IsSlower(world, device)) {
    device.why_fp32 = "this CPU's bf16 instructions are slower";
  }
  device.stream.bf16_by_fp32 = !device.why_fp32.empty();
}

// Opens the GPU if GPUs compute, and sets the arithmetic.
void OpenDevice(const GpuChoice& choice, const Request& request, const comm::Communicator& world,
                Device& device) {
  const device::Arithmetic arithmetic = device::ArithmeticOf(request.machine.precision, choice.use);
  world.Together([&] {
    if (choice.use) {
      device.gpu = std::make_unique<device::Gpu>(choice.device);
      RequireCudnnIfAsked(request);
      device.gpu->Choose(request.machine.attention, request.machine.deterministic);
      device.staged = choice.staged;
      device.stream.gpu = &device.gpu->Context();
      RequireFixedOrder(request, device);
    }
    device.dtype = arithmetic.dtype;
    device.stream.bf16 = arithmetic.bf16_products;
    device.stream.fp8 = arithmetic.fp8_products;
    // These tasks compute nothing on this machine.
    if (OnlyConverts(request.job.task) || request.job.task == Task::kPlan) return;
    device::CheckPrecision(request.machine, device.stream, request.deck);
    if (!choice.use) return;
    const std::int64_t sites = model::kSitesABlock * request.model.Blocks();
    device.libraries = kernels::MakeLibraries(device.stream, static_cast<int>(sites));
    device.stream.libraries = device.libraries.get();
  });
}

// Identifies what a rank runs: the program and its arguments.
std::string Identity(const CommandLine& line, const std::string& file) {
  return fmt::format("Trireme {} ({}), build {}, file {}, -i '{}' -r '{}'{} {}", Version(),
                     Commit(), BuildId(), file, line.deck, line.resume,
                     line.validate_only ? " -v" : "", fmt::join(line.overrides, " "));
}

// Throws AgreedError unless all ranks run one program with the same arguments. Collective.
void RequireOneProgram(const comm::Runtime& runtime, const CommandLine& line) {
  const comm::Communicator& world = runtime.World();
  const std::string file = tools::ProgramFile(runtime.Node());
  std::string mine;
  world.Together([&] { mine = Identity(line, file); });
  const std::string of_root = world.Broadcast(mine);
  if (comm::TrueEverywhere(world, mine == of_root)) return;
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

// The folder for a report on a set-up that hangs: job.output or the run of -r; empty: neither is
// given, and the report goes into the current folder.
std::string RunFolderBeforeLock(const Request& request) {
  if (request.job.output_given) return request.job.output;
  const std::filesystem::path resumed(request.line.resume), above = resumed.parent_path();
  return (above.filename() == "checkpoints" ? above.parent_path() : resumed).string();
}

// The start of a training job from a local checkpoint.

std::string Instead(const RunRecord& record, std::int64_t local_step) {
  const std::int64_t lost = local_step - record.step;
  return fmt::format("; the run folder's of step {} is taken{}", record.step,
                     lost > 0
                         ? fmt::format(", {} {} lost", lost, lost == 1 ? "step is" : "steps are")
                         : std::string());
}

// Notes in `start` a local checkpoint that records mention but that no host has. Collective.
void SayLost(const Request& request, const comm::Communicator& world, Start& start) {
  std::int64_t told = 0;
  world.Together([&] {
    if (!world.IsRoot()) return;
    told = report::LastCheckpoint(request.line.resume, "local checkpoint").value_or(0);
  });
  told = world.Max(told);
  if (told <= start.record->step) return;
  start.passed_over.push_back(
      fmt::format("the local checkpoint of step {}: it is on none of these hosts{}", told,
                  Instead(*start.record, told)));
}

// Whether `path` is the first candidate, that is, names a checkpoint and not a run. Collective.
bool IsFirst(const comm::Communicator& world, const Start& start, const std::string& path) {
  std::error_code error;
  const bool first = world.IsRoot() &&
                     std::filesystem::equivalent(path, start.candidates.front(), error) && !error;
  return world.Max(std::int64_t{first}) == 1;
}

// Reads the first candidate's run.json. Collective.
RunRecord ReadFirst(const comm::Communicator& world, const Start& start) {
  const std::string& path = start.candidates.front();
  const nlohmann::json run = checkpoint::ReadRun(world, path);
  RunRecord record;
  world.Together([&] { record = ParseRunRecord(run, path + "/run.json"); });
  return record;
}

// With checkpoint.local and -r RUN: looks for a local checkpoint on the nodes and lets the job
// start from it, or notes in `start` why it cannot. Collective.
void LookForLocal(const Request& request, const Ranks& ranks, Start& start) {
  const std::string& folder = request.checkpoint.local;
  if (request.job.task != Task::kTrain || folder.empty() || start.weights_alone || !start.record) {
    return;
  }
  const nlohmann::json& newest = start.record->json;
  const std::string id = deck::TextOf(newest, kRunName);
  if (id.empty() || IsFirst(ranks.World(), start, request.line.resume)) return;
  const checkpoint::LocalSearch search = checkpoint::FindLocal(
      {ranks.World(), ranks.Hosts()}, {.folder = folder, .id = id, .session = {}},
      {.step = start.record->step,
       .sequence = deck::WholeNumber(newest.value("sequence", nlohmann::json())).value_or(0),
       .session = deck::TextOf(newest, kSessionName)});
  for (const auto& [step, why] : search.passed_over) {
    start.passed_over.push_back(
        why + (search.found == nullptr && step > 0 ? Instead(*start.record, step) : ""));
  }
  if (search.found == nullptr && search.passed_over.empty()) SayLost(request, ranks.World(), start);
  if (search.found == nullptr) return;
  ranks.World().Together([&] {
    RunRecord record = ParseRunRecord(
        search.found->Run(),
        fmt::format("the local checkpoint of step {}: run.json", search.found->Step()));
    RequireSameModel(*start.record, record);
    start.record = std::move(record);
  });
  start.local = search.found;
}

// Replaces the local checkpoint by the first candidate; notes `why` and steps lost. Collective.
void LeaveLocal(const comm::Communicator& world, Start& start, const std::string& why) {
  const std::int64_t step = start.local->Step();
  start.local.reset();
  start.record = ReadFirst(world, start);
  start.passed_over.push_back(why + Instead(*start.record, step));
}

}  // namespace

Job MakeJob(const comm::Runtime& runtime, const CommandLine& line, const deck::Schema& schema,
            device::StopSignals& signals) {
  const comm::Communicator& world = runtime.World();
  Job job;
  Request& request = job.request;
  request.begun = Seconds();
  job.ranks = {&runtime, &signals};
  RequireOneProgram(runtime, line);
  Sources sources = ShareSources(world, schema, line);
  world.Together([&] {
    deck::Deck deck = ParseDeck(schema, line, sources);
    static_cast<DeckOptions&>(request) = ReadAll(deck);
    request.line = line;
    request.schema = &schema;
    request.deck = std::move(deck);
    job.start = std::move(sources.start);
    request.sources = std::move(sources);
    // The warnings of a training go to its monitor.
    if (world.IsRoot() && request.job.task != Task::kTrain) PrintWarnings(job.start);
  });
  LookForLocal(request, job.ranks, job.start);
  if (const std::string folder = RunFolderBeforeLock(request); !folder.empty()) {
    runtime.Watch().WriteInto(folder);
  }
  // Faults of a node often show when GPUs and their libraries are opened: watch from here on.
  ArmSetUp(runtime, request.machine.hang_timeout);
  Device& device = job.device;
  const GpuChoice choice = ChooseGpu(runtime, request.machine, request.deck);
  device.placement = PlaceThreads(runtime, request.machine, choice.use);
  device.stream.threads = device.placement.threads;
  OpenDevice(choice, request, world, device);
  if (!OnlyConverts(request.job.task) && request.job.task != Task::kPlan) {
    ChooseBf16Products(request, world, job.start, device);
  }
  runtime.Watch().Disarm();  // a training arms them again
  device.program_bytes = MemoryInUse(device) + (device.stream.OnGpu() ? 0 : kLoadedLater);
  return job;
}

std::int64_t MemoryInUse(const Device& device) {
  return device.stream.OnGpu()
             ? device.gpu->Context().memory_bytes - device::FreeBytes(device.stream)
             : report::PeakResidentBytes();
}

tools::Findings LookAround(const Request& request, const Ranks& ranks, const Device& device,
                           bool whole) {
  const DeckOptions& options = request;
  tools::Subject subject{.output = options.job.output,
                         .data = {},
                         .cores = ranks.signals->UsableCores(),
                         .threads = device.stream.threads,
                         .card = device.gpu == nullptr ? "" : device.gpu->Context().address};
  if (options.data.mixture.empty()) subject.data.push_back(options.data.file);
  for (const data::MixtureFile& file : options.data.mixture) subject.data.push_back(file.path);
  constexpr std::size_t kMostFiles = 8;
  if (subject.data.size() > kMostFiles) subject.data.resize(kMostFiles);
  return tools::LookAround({ranks.World(), ranks.Node(), ranks.Hosts()}, subject, whole);
}

train::MachineFacts FactsOf(const Device& device) {
  return {.dtype = device.dtype, .stream = device.stream, .gpu_staged = device.staged};
}

// The number of steps that a continued run keeps (RunRecord::planned); 0: schedule.epochs decides,
// because the run never rolled back, or epochs, windows or batches have changed.
static std::int64_t PlannedSteps(const Request& request, const Start& start) {
  const std::optional<RunRecord>& record = start.record;
  if (!record || request.line.resume.empty() || !record->planned) return 0;
  const data::Options& now = request.data;
  const bool same = record->planned->epochs == request.schedule.epochs &&
                    record->length == now.sequence_length && record->stride == now.stride &&
                    record->batch == now.batch &&
                    record->planned->ramp ==
                        data::BatchRamp{request.schedule.batch_ramp, request.schedule.batch_start};
  return same ? record->planned->steps : 0;
}

train::Request RequestOf(const Request& request, const comm::Communicator& world,
                         const Device& device, const Start& start,
                         const train::TokenFacts& tokens) {
  return {.options = request,
          .deck = request.deck,
          .ranks = world.Size(),
          .tokens = tokens,
          .machine = FactsOf(device),
          .async_checkpoints = request.checkpoint.async,
          .origin = OriginOf(request, start, tokens),
          .steps = PlannedSteps(request, start)};
}

namespace {

// Leaves out the damaged checkpoint, `local` if it is set or the first candidate. Collective.
void PassOver(const comm::Communicator& world, Start& start,
              const checkpoint::DamagedError& damage) {
  if (start.local != nullptr) return LeaveLocal(world, start, damage.what());
  start.passed_over.emplace_back(damage.what());
  start.damaged.push_back(start.candidates.front());
  start.candidates.erase(start.candidates.begin());
  RunRecord record = ReadFirst(world, start);
  world.Together([&] { RequireSameModel(*start.record, record); });
  start.record = std::move(record);
}

std::string FirstLineOf(const std::string& text) { return text.substr(0, text.find('\n')); }

// Throws for a run of which all checkpoints are damaged. If the user named a single checkpoint,
// throws `damage` again. Collective.
[[noreturn]] void ThrowNoneWhole(const Request& request, const comm::Communicator& world,
                                 const Start& start, const checkpoint::DamagedError& damage) {
  const std::string& path =
      start.weights_alone ? request.checkpoint.start_from : request.line.resume;
  if (IsFirst(world, start, path)) throw damage;
  std::string text = path + ": no checkpoint of the run is whole";
  for (const std::string& other : start.passed_over) text += "\n  " + FirstLineOf(other);
  text += "\n  " + FirstLineOf(damage.what());
  throw AgreedError(damage.Code(), text,
                    "Restore one from a copy, or train anew into another job.output.");
}

}  // namespace

ExitCode FromNewestValid(const Request& request, const comm::Communicator& world, Start& start,
                         const std::function<ExitCode()>& body) {
  std::optional<checkpoint::DamagedError> damage;
  while (true) {
    try {
      if (damage) PassOver(world, start, *std::exchange(damage, std::nullopt));
      return body();
    } catch (const checkpoint::DamagedError& error) {
      if (start.candidates.size() <= 1 && start.local == nullptr) {
        ThrowNoneWhole(request, world, start, error);
      }
      damage = error;
    }
  }
}

std::string ReadNewest(const Request& request, const comm::Communicator& world, const Start& start,
                       const std::function<void(const std::string&)>& read) {
  constexpr int kMostVanished = 100;
  const Task task = request.job.task;
  const bool changes = task == Task::kTrain && !request.line.validate_only;
  Start now = start;
  for (int vanished = 0;; ++vanished) {
    const std::string checkpoint = now.candidates.front();
    try {
      read(checkpoint);
      return checkpoint;
    } catch (const checkpoint::VanishedError&) {
      if (changes || vanished == kMostVanished) throw;
    }
    FindAgain(world, request.line, request.deck, now);
    world.Together([&] { RequireSameModel(*start.record, *now.record); });
  }
}

void CheckMemory(const Request& request, const Ranks& ranks, const Device& device,
                 const device::MemoryTerms& planned, const comm::ProcessGrid& grid) {
  const comm::NodeDemand demand = comm::DemandOf(ranks.Node(), planned, device.stream);
  ranks.World().Together(
      [&] { comm::CheckNodeMemory(demand, grid, request.parallel.canonical.On()); });
}

bool HasMemory(const Ranks& ranks, const Device& device, const device::MemoryTerms& planned) {
  const comm::NodeDemand demand = comm::DemandOf(ranks.Node(), planned, device.stream);
  return ranks.World().Min(std::int64_t{demand.Fits()}) == 1;
}

void UseGpu(const Request& request, const Device& device, comm::ProcessGrid& grid) {
  if (!device.stream.OnGpu()) return;
  grid.UseGpu(device.stream, device.staged, request.parallel.chunks);
}

void UseGpu(const Request& request, const Device& device, const device::MemoryTerms& planned,
            comm::ProcessGrid& grid) {
  UseGpu(request, device, grid);
  if (!device.stream.OnGpu() || planned.communicators == 0) return;
  const comm::Communicator& world = grid.World();
  device::MemoryTerms rest = planned;
  rest.communicators = 0;
  comm::NodeDemand demand = comm::DemandOf(world.SplitNode(), rest, device.stream);
  demand.available.source += fmt::format(" beside {}'s communicators (planned: {} MiB per rank)",
                                         comm::GpuTransferLibrary(), planned.communicators >> 20);
  world.Together([&] { comm::CheckNodeMemory(demand, grid, request.parallel.canonical.On()); });
}

void StopIfAsked(const Ranks& ranks) {
  if (ranks.World().Max(std::int64_t{ranks.signals->Received()}) == 0) return;
  throw AgreedError(
      ExitCode::kStopped,
      "stopped by a signal during the set-up: nothing was computed yet; run it again");
}

ExitCode SayValid(const comm::Communicator& world) {
  if (world.IsRoot()) fmt::print("valid: everything was constructed; nothing was computed\n");
  return ExitCode::kDone;
}

}  // namespace trireme::app
