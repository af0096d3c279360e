// Network devices of a host, and how far a GPU is from its core and its network card.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "trireme/tools/system.hpp"

namespace trireme::tools {

namespace {

namespace fs = std::filesystem;

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> EntriesOf(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// "mlx5_0 InfiniBand 200 Gb/sec (4X HDR)" of the first port that is active; empty: none is.
std::string ActivePort(const fs::path& device, const std::string& name) {
  for (const std::string& port : EntriesOf(device / "ports")) {
    const fs::path at = device / "ports" / port;
    if (FirstLine(at / "state").find("ACTIVE") == std::string::npos) continue;
    return fmt::format("{} {} {}", name, FirstLine(at / "link_layer"), FirstLine(at / "rate"));
  }
  return {};
}

std::string Some(std::span<const std::string> names) {
  constexpr std::size_t kShown = 4;
  std::string text =
      fmt::format("{}", fmt::join(names.first(std::min(kShown, names.size())), ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// Numbers of "0-3,8".
std::vector<int> Numbers(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const int found = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    for (int i = first; found > 0 && i <= (found == 2 ? last : first); ++i) numbers.push_back(i);
  }
  return numbers;
}

// NUMA nodes of the network cards, by name.
std::vector<std::pair<std::string, int>> NetworkCards(const Roots& roots) {
  std::vector<std::pair<std::string, int>> cards;
  for (const char* kind : {"infiniband", "cxi"}) {
    const fs::path folder = fs::path(roots.sys) / "class" / kind;
    for (const std::string& name : EntriesOf(folder)) {
      cards.emplace_back(name, NumaNodeOf((folder / name / "device").string()));
    }
  }
  return cards;
}

}  // namespace

Devices FindDevices(const Roots& roots) {
  const fs::path classes = fs::path(roots.sys) / "class";
  Devices devices;
  for (const std::string& name : EntriesOf(classes / "infiniband")) {
    const std::string port = ActivePort(classes / "infiniband" / name, name);
    if (!port.empty()) devices.infiniband.push_back(port);
  }
  devices.slingshot = EntriesOf(classes / "cxi");
  for (const std::string& name : EntriesOf(classes / "net")) {
    if (name == "lo" || FirstLine(classes / "net" / name / "operstate") == "down") continue;
    const std::string speed = FirstLine(classes / "net" / name / "speed");
    const bool known = !speed.empty() && speed[0] != '-';
    const double gigabits = known ? std::atof(speed.c_str()) / 1000 : 0;
    devices.ethernet.push_back(known ? fmt::format("{} {:g} Gbit/s", name, gigabits) : name);
  }
  return devices;
}

std::string Devices::Text() const {
  std::vector<std::string> parts;
  for (const std::vector<std::string>* kind : {&infiniband, &slingshot, &ethernet}) {
    if (!kind->empty()) parts.push_back(Some(*kind));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

int NumaNodeOf(const std::string& folder) {
  std::ifstream file(folder + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

std::string FarCard(const std::string& address, std::span<const int> cores, std::string_view chosen,
                    const Roots& roots) {
  const std::string card = roots.sys + "/bus/pci/devices/" + address;
  const int node = NumaNodeOf(card);
  if (node < 0) return {};
  const std::vector<int> near = Numbers(FirstLine(card + "/local_cpulist"));
  const bool none_near = std::ranges::none_of(
      cores, [&](int core) { return std::ranges::find(near, core) != near.end(); });
  if (!near.empty() && !cores.empty() && none_near) {
    return fmt::format(
        "GPU {} hangs on cores {} (NUMA node {}), but its rank is bound to cores {}: copies cross "
        "the sockets. Let the launcher bind ranks to the cores of their GPUs",
        address, RangesOf(near), node, RangesOf(cores));
  }
  const auto cards = NetworkCards(roots);
  const auto is_chosen = [&](const std::string& name) {
    return chosen.find(name) != std::string_view::npos;
  };
  std::string own, far;
  for (const auto& [name, numa] : cards) {
    if (is_chosen(name) && numa == node) return {};
    if (numa == node && own.empty()) own = name;
    if (is_chosen(name) && numa >= 0) far = name;
  }
  if (own.empty() || far.empty()) return {};
  return fmt::format(
      "GPU {} (NUMA node {}) is given network card {} of another node, though {} is near: leave "
      "UCX_NET_DEVICES out, or name the near one",
      address, node, far, own);
}

std::vector<int> OnlineCores(const Roots& roots) {
  for (const char* path : {"/fs/cgroup/cpuset.cpus.effective", "/devices/system/cpu/online"}) {
    std::vector<int> cores = Numbers(FirstLine(roots.sys + path));
    if (!cores.empty()) return cores;
  }
  return {};
}

std::string RangesOf(std::span<const int> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += text.empty() ? "" : ",";
    text +=
        last == i ? std::to_string(numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace trireme::tools
