// Reading the facts of a host from the kernel's files.
#include "host_facts.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <link.h>
#include <sched.h>
#include <sys/statvfs.h>
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

namespace trireme::support {

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

// Names of the types that statfs numbers; others keep their number.
std::string TypeName(std::uint64_t type) {
  constexpr auto kTypes =
      std::to_array<std::pair<std::uint64_t, const char*>>({{0xEF53, "ext4"},
                                                            {0x58465342, "xfs"},
                                                            {0x9123683E, "btrfs"},
                                                            {0x01021994, "tmpfs"},
                                                            {0x6969, "nfs"},
                                                            {0x0BD00BD0, "lustre"},
                                                            {0x47504653, "gpfs"},
                                                            {0x19830326, "beegfs"},
                                                            {0x794C7630, "overlayfs"},
                                                            {0x65735546, "fuse"},
                                                            {0x00C36400, "ceph"},
                                                            {0x858458F6, "ramfs"},
                                                            {0x2FC12FC1, "zfs"}});
  for (const auto& [number, name] : kTypes) {
    if (number == type) return name;
  }
  return fmt::format("type {:#x}", type);
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
                        name, TypeName(static_cast<std::uint64_t>(facts.f_type)),
                        static_cast<double>(facts.f_blocks) * block / kGib,
                        static_cast<double>(facts.f_bavail) * block / kGib,
                        static_cast<std::uint64_t>(facts.f_ffree), path);
  }
  return text;
}

}  // namespace trireme::support
