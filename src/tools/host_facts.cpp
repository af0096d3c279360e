// Reading the facts of a host from the kernel's files.
#include "host_facts.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <link.h>
#include <sched.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/base/file_system.hpp"

namespace trireme::tools {

namespace {

namespace fs = std::filesystem;

// First line of `path` that begins with `key`, without the key, blanks and ':' or '='; or nothing.
std::string ValueOf(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t start = line.find_first_not_of(" \t:=\"", key.size());
    if (start == std::string::npos) return {};
    return line.substr(start, line.find_last_not_of(" \t\"") + 1 - start);
  }
  return {};
}

void Add(std::string& text, const char* name, const std::string& value) {
  if (!value.empty()) text += fmt::format("{:<16}{}\n", name, value);
}

std::string UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  return std::to_string(CPU_COUNT(&set));
}

std::string CoresOnline() {
  std::ifstream file("/sys/devices/system/cpu/online");
  std::string range;
  std::getline(file, range);
  return range;
}

int AddLibrary(dl_phdr_info* info, std::size_t, void* text) {
  if (info->dlpi_name == nullptr || *info->dlpi_name == '\0') return 0;
  std::error_code error;
  const fs::path real = fs::canonical(info->dlpi_name, error);
  const std::uintmax_t bytes = error ? 0 : fs::file_size(real, error);
  *static_cast<std::string*>(text) +=
      error ? fmt::format("{}\n", info->dlpi_name)
            : fmt::format("{} ({}, {} bytes)\n", info->dlpi_name, real.filename().string(), bytes);
  return 0;
}

}  // namespace

std::string HostFacts() {
  std::string text;
  utsname system{};
  if (uname(&system) == 0) {
    Add(text, "host", system.nodename);
    Add(text, "kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
  }
  Add(text, "distribution", ValueOf("/etc/os-release", "PRETTY_NAME"));
  Add(text, "processor", ValueOf("/proc/cpuinfo", "model name"));
  Add(text, "cores online", CoresOnline());
  Add(text, "cores usable", UsableCores());
  Add(text, "instructions", ValueOf("/proc/cpuinfo", "flags"));
  Add(text, "memory", ValueOf("/proc/meminfo", "MemTotal"));
  Add(text, "memory free", ValueOf("/proc/meminfo", "MemAvailable"));
  Add(text, "swap", ValueOf("/proc/meminfo", "SwapTotal"));
  Add(text, "huge pages", ValueOf("/proc/meminfo", "HugePages_Total"));
  Add(text, "GPU driver", ValueOf("/proc/driver/nvidia/version", "NVRM version"));
  Add(text, "time", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr))));
  return text;
}

std::string LoadedLibraries() {
  std::string text;
  dl_iterate_phdr(AddLibrary, &text);
  return text;
}

std::string FileSystems(const std::string& run) {
  const char* const temporary = std::getenv("TMPDIR");
  const std::vector<std::pair<std::string, std::string>> places = {
      {"run", run},
      {"here", "."},
      {"$TMPDIR", temporary == nullptr ? "/tmp" : temporary},
      {"memory", "/dev/shm"}};
  std::string text;
  for (const auto& [name, path] : places) {
    struct statfs facts {};
    if (statfs(path.c_str(), &facts) != 0) continue;
    const double block = static_cast<double>(facts.f_bsize);
    constexpr double kGib = 1 << 30;
    text += fmt::format("{:<9}{:<10}{:>12.1f} GiB, {:>12.1f} GiB free, {:>12} files free  {}\n",
                        name, NameOfFileSystem(FileSystemNumber(facts.f_type)),
                        static_cast<double>(facts.f_blocks) * block / kGib,
                        static_cast<double>(facts.f_bavail) * block / kGib,
                        static_cast<std::uint64_t>(facts.f_ffree), path);
  }
  return text;
}

}  // namespace trireme::tools
