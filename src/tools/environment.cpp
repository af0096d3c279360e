// The environment of a process: which variables matter in a ticket.
#include "environment.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "redact.hpp"

namespace trireme::tools {

namespace {

constexpr auto kPrefixes = std::to_array<std::string_view>(
    {"OMP_",    "GOMP_",   "KMP_",  "OMPI_",  "PRTE_",         "PMIX_",    "PMI_",    "HYDRA_",
     "MPI_",    "MPICH_",  "MPIR_", "I_MPI_", "PSM2_",         "SLURM_",   "SLURMD_", "SRUN_",
     "SBATCH_", "UCX_",    "FI_",   "NCCL_",  "CUDA_",         "TRIREME_", "ROMIO_",  "HDF5_",
     "DNNL_",   "ONEDNN_", "PBS_",  "LSB_",   "XDG_CACHE_HOME"});
constexpr auto kNames = std::to_array<std::string_view>(
    {"LOADEDMODULES", "LMOD_SYSTEM_NAME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG",
     "LC_ALL", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"});

bool Concerns(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::string Number(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

}  // namespace

std::string RelevantEnvironment(const std::vector<std::string>& environment) {
  std::vector<std::string> lines;
  for (const std::string& each : environment) {
    const std::size_t equals = each.find('=');
    const std::string name = each.substr(0, equals);
    if (equals == std::string::npos || !Concerns(name)) continue;
    const std::string value = each.substr(equals + 1);
    // Further lines could be mistaken for other variables.
    std::string shown = LooksSecret(name, value) ? "(left out: it may be a secret)" : value;
    std::replace(shown.begin(), shown.end(), '\n', ' ');
    lines.push_back(fmt::format("{}={}\n", name, shown));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line;
  return text.empty() ? "none of the variables that concern a job is set\n" : text;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> result;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    result.emplace_back(*each);
  }
  return result;
}

std::string LimitsText() {
  constexpr auto kLimits = std::to_array<std::pair<const char*, __rlimit_resource>>(
      {{"address space, bytes", RLIMIT_AS},
       {"core file, bytes", RLIMIT_CORE},
       {"cpu time, seconds", RLIMIT_CPU},
       {"data, bytes", RLIMIT_DATA},
       {"file size, bytes", RLIMIT_FSIZE},
       {"locked memory, bytes", RLIMIT_MEMLOCK},
       {"open files", RLIMIT_NOFILE},
       {"processes", RLIMIT_NPROC},
       {"stack, bytes", RLIMIT_STACK}});
  std::string text = fmt::format("{:<22}{:>22}{:>22}\n", "limit", "soft", "hard");
  for (const auto& [name, resource] : kLimits) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0) continue;
    text +=
        fmt::format("{:<22}{:>22}{:>22}\n", name, Number(limit.rlim_cur), Number(limit.rlim_max));
  }
  return text;
}

}  // namespace trireme::tools
