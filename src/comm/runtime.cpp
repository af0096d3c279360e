// Runtime: MPI's start and end, and the guard that turns exceptions into one message and an exit
// code.
#include "trireme/comm/runtime.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <utility>

#include "trireme/device/cores.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::comm {

namespace {

std::string HostName() {
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return std::string(name, static_cast<std::size_t>(length));
}

// Prints in a single write, so that lines of several ranks do not interleave; flushes stdout first.
void Print(const std::string& message) {
  std::fflush(stdout);
  const std::string line = message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

// Start of the message of a rank that fails alone; made early, since memory may run out later.
std::array<char, 512> failed_alone{"trireme: error: "};

// This rank's record, in which it announces its end to the watchdogs before its last message.
std::atomic<RankSlot*> own_record = nullptr;

void LeaveRecord() {
  if (RankSlot* const mine = own_record.load()) mine->leaves.store(true);
}

// Time limit of MPI_Finalize, where a lost rank would keep the others for ever; seconds.
constexpr double kEndSeconds = 1800;

// Prints in one write without allocating, and ends the job without unwinding the exception.
[[noreturn]] void AbortAlone(ExitCode code, const char* message) {
  LeaveRecord();
  std::fflush(stdout);
  std::array<char, 16384> line{};
  const int length =
      std::snprintf(line.data(), line.size(), "%s%s\n", failed_alone.data(), message);
  const auto written = std::min(static_cast<std::size_t>(std::max(length, 0)), line.size() - 1);
  std::fwrite(line.data(), 1, written, stderr);
  std::fflush(stderr);
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  // If MPI is not running, the launcher ends the other ranks at this exit code.
  if (started != 0 && ended == 0) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

// The terminate handler, called for an uncaught exception before any destructor runs.
[[noreturn]] void EndAlone() {
  if (!std::current_exception()) {
    AbortAlone(ExitCode::kFailed, "the program was terminated without an exception");
  }
  const Failure failure = CaughtFailure();
  AbortAlone(failure.code, failure.message.c_str());
}

// The launchers' variables, innermost launcher first.

// The number in a variable; -1 if it is not set or not a number.
int Number(const char* variable) {
  const char* text = std::getenv(variable);
  int number = -1;
  if (text == nullptr) return number;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  return error == std::errc() && stop == end ? number : -1;
}

constexpr const char* kOtherLibrary =
    "Start it with the launcher of the MPI library that it was built with (trireme --version).";
constexpr const char* kSlurmStep = "SLURM_STEP_NUM_TASKS";
constexpr const char* kSlurm =
    "srun --mpi=pmix starts them as ranks of one job (srun --mpi=list shows what there is). "
    "In a shell that srun has opened: unset SLURM_STEP_NUM_TASKS.";

}  // namespace

Runtime::Runtime(int* argc, char*** argv) {
  device::PrepareGpuEnvironment();  // before MPI looks for GPUs
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  world_ = Communicator::Adopt(MPI_COMM_WORLD);
  if (provided < MPI_THREAD_FUNNELED) {
    if (world_.IsRoot()) {
      Print(
          "trireme: error: this MPI library does not provide MPI_THREAD_FUNNELED\n"
          "  Load or build an MPI library with thread support.");
    }
    MPI_Abort(world_.Handle(), static_cast<int>(ExitCode::kFailed));
  }
  node_ = world_.SplitNode();
  HostMap map = HostMap::Gather(world_, node_, HostName());
  hosts_ = std::move(map.hosts);
  if (world_.Size() > 1) {
    std::snprintf(failed_alone.data(), failed_alone.size(),
                  "trireme: error on rank %d (%s): ", world_.Rank(),
                  hosts_.Of(world_.Rank()).c_str());
  }
  ReportTermination();
  StartRecording(std::move(map.nodes));
}

void Runtime::StartRecording(std::vector<std::int32_t> nodes) {
  recorder_ = std::make_unique<FlightRecorder>(world_.Rank(), node_);
  own_record.store(&recorder_->Mine());
  world_.RecordWith(*recorder_, "world");
  node_.RecordWith(*recorder_, "node");
  const std::time_t now = std::time(nullptr);
  watchdog_ = std::make_unique<Watchdog>(Watchdog::Setup{
      .recorder = recorder_.get(),
      .hosts = hosts_,
      .nodes = std::move(nodes),
      .cores = device::UsableNumbers(),
      .session = world_.Broadcast(fmt::format("{:%Y%m%d_%H%M%S}", fmt::gmtime(now)))});
}

Runtime::~Runtime() {
  LeaveRecord();
  if (watchdog_->Started()) watchdog_->Arm(Phase::kEnd, 0, kEndSeconds);
  { const Communicator freed_before_the_end = std::move(node_); }
  MPI_Finalize();
  watchdog_.reset();
  own_record.store(nullptr);
}

void Runtime::ReportTermination() { std::set_terminate(EndAlone); }

int Runtime::Guard(const std::function<ExitCode()>& body) const {
  const auto leave_together = [this](ExitCode code, const std::string& message) {
    const char* kind = code == ExitCode::kStopped ? "" : "error: ";  // a requested stop
    if (world_.IsRoot()) Print(fmt::format("trireme: {}{}", kind, message));
    return static_cast<int>(code);
  };
  try {
    // No handler here or in a caller may catch anything else: handlers are searched before
    // unwinding, and if there is none EndAlone runs with every object still in place.
    if (world_.Size() > 1) return static_cast<int>(body());
  } catch (const AgreedError& error) {
    return leave_together(error.Code(), error.what());
  }
  try {
    return static_cast<int>(body());  // a world of one agrees with itself
  } catch (...) {
    const Failure failure = CaughtFailure();
    return leave_together(failure.code, failure.message);
  }
}

Launcher ReadLauncher() {
  struct Source {
    const char *processes, *number, *name, *hint;
  };
  constexpr Source kSources[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpirun", kOtherLibrary},
      {"PMI_SIZE", "PMI_RANK", "the launcher", kOtherLibrary},
      {"FLUX_JOB_SIZE", "FLUX_TASK_RANK", "flux run",
       "flux run -o pmi=pmix starts them as ranks of one job, with Flux's plugin for PMIx."},
      {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "jsrun", kOtherLibrary},
      {kSlurmStep, "SLURM_PROCID", "the Slurm step", kSlurm}};
  for (const Source& source : kSources) {
    const int processes = Number(source.processes);
    if (processes < 1) continue;
    Launcher launcher{processes, Number(source.number), source.name, source.hint};
    // srun --mpi=pmi2 also sets the PMI variables.
    if (std::strcmp(source.processes, "PMI_SIZE") == 0 && Number(kSlurmStep) == processes) {
      launcher.name = "the Slurm step";
      launcher.hint = kSlurm;
    }
    return launcher;
  }
  return {};
}

bool RefuseSingletons(const Launcher& launcher, int ranks) {
  if (ranks != 1 || launcher.processes <= 1) return false;
  if (launcher.number > 0) return true;
  throw InputError(fmt::format("{} has {} tasks, MPI sees 1: each would run the whole job",
                               launcher.name, launcher.processes),
                   launcher.hint);
}

}  // namespace trireme::comm
