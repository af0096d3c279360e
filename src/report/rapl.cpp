// RAPL: energies that the processors count themselves, as Linux's power capping framework shows
// them (Documentation/power/powercap/powercap.rst).
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <regex>
#include <system_error>
#include <thread>

#include "counter.hpp"
#include "file_counter.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/descriptor.hpp"

namespace trireme::report {

namespace {

namespace fs = std::filesystem;

constexpr double kMicrojoule = 1e-6;
constexpr std::chrono::milliseconds kProbePause{2};  // between looks at counters that should move

// Domains of RAPL by their names. `core`, `uncore` and `dram` lie within zones of packages; the
// energy of the first two is part of their package's, that of memory is not. `psys` holds the
// packages and more of the board.
struct Domain {
  std::unique_ptr<FileCounter> counter;
  Part part = kPackages;
};

std::optional<Part> PartOf(const std::string& name) {
  if (name.starts_with("package")) return kPackages;
  if (name == "dram") return kMemory;
  if (name == "psys") return kPlatform;
  return std::nullopt;
}

// Zones of the interface through the processors' registers. The same packages may be shown once
// more through memory, as intel-rapl-mmio:0.
std::vector<std::string> ZonesIn(const std::string& folder) {
  static const std::regex zone("intel-rapl(:[0-9]+)+");
  std::vector<std::string> zones;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (std::regex_match(name, zone)) zones.push_back(entry->path().string());
  }
  std::sort(zones.begin(), zones.end());
  return zones;
}

// Drops the kinds of domains of which none moves within `seconds`: a virtual machine may show
// counters that nothing feeds. A kind is never counted in part.
void DropStill(std::vector<Domain>& domains, double seconds, std::vector<std::string>& why) {
  if (seconds <= 0) return;
  std::vector<std::optional<double>> before;
  for (const Domain& domain : domains) before.push_back(domain.counter->Read());
  unsigned all = 0, moved = 0;  // kinds
  for (const Domain& domain : domains) all |= domain.part;
  for (const double end = Seconds() + seconds; moved != all && Seconds() < end;) {
    std::this_thread::sleep_for(kProbePause);
    for (std::size_t i = 0; i < domains.size(); ++i) {
      if (domains[i].counter->Read() != before[i]) moved |= domains[i].part;
    }
  }
  std::erase_if(domains, [&](const Domain& domain) {
    const bool still = (moved & domain.part) == 0;
    if (still) why.push_back(domain.counter->Path() + ": stands still");
    return still;
  });
}

}  // namespace

void FindRapl(const Places& places, Counters& counters) {
  const std::string folder = places.root + "/sys/class/powercap";
  std::vector<Domain> domains;
  std::vector<std::string> why;
  for (const std::string& zone : ZonesIn(folder)) {
    const auto name = FirstLine(zone + "/name");
    const auto part = name ? PartOf(*name) : std::nullopt;
    if (!part) continue;
    const std::string path = zone + "/energy_uj";
    errno = 0;
    if (!FirstLine(path)) {
      const int error = errno;
      const char* hint = error == EACCES ? " (root alone may read it)" : "";
      why.push_back(fmt::format("{}: {}{}", path, ErrorText(error), hint));
      continue;
    }
    const auto most = FirstLine(zone + "/max_energy_range_uj");
    const double range = kMicrojoule * (most ? NumberIn(*most).value_or(0) : 0);
    domains.push_back({std::make_unique<FileCounter>(path, kMicrojoule, range), *part});
  }
  DropStill(domains, places.probe_seconds, why);
  // The platform's counter has what packages and memory count.
  const auto has = [&domains](Part part) {
    return std::any_of(domains.begin(), domains.end(),
                       [part](const Domain& domain) { return domain.part == part; });
  };
  const bool platform = has(kPlatform) && !has(kPackages);
  std::erase_if(domains,
                [&](const Domain& domain) { return (domain.part == kPlatform) != platform; });
  for (Domain& domain : domains) {
    counters.parts |= domain.part;
    counters.node.push_back(std::move(domain.counter));
  }
  if (domains.empty() && why.empty()) why.push_back(folder + ": no counters of RAPL");
  // One domain tells of the others.
  if (!why.empty()) counters.why.push_back("CPUs: " + why.front());
}

}  // namespace trireme::report
