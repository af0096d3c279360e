// Variables of the launchers, nearest first.
#include "trireme/comm/launcher.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace trireme::comm {

namespace {

// A variable's number; -1 where it has none.
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
    // srun --mpi=pmi2 speaks PMI, too.
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
