// Available memory from /proc and the control groups, and the demand of the ranks that share it.
#include "trireme/comm/node_memory.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/base/in_threads.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::comm {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kWorthNaming = (std::int64_t{1} << 30) / 20;  // shown as 0.1 GiB or more
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// The number in a file; kNoLimit if there is no number ("max") or no file.
std::int64_t NumberIn(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? number : kNoLimit;
}

// File pages that a group may drop; they count as used but can be taken.
std::int64_t Droppable(const fs::path& group, const char* key) {
  std::ifstream file(group / "memory.stat");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t bytes = 0;
    if (words >> name >> bytes && name == key) return bytes;
  }
  return 0;
}

struct Version {
  const char *limit, *used, *droppable;
};
constexpr Version kV2{"memory.max", "memory.current", "inactive_file"};
constexpr Version kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

std::int64_t LeftByGroups(const std::string& proc, const std::string& cgroups) {
  std::int64_t left = kNoLimit;
  device::ForEachGroup("memory", proc, cgroups, [&](const fs::path& group, int number) {
    const Version& version = number == 2 ? kV2 : kV1;
    const std::int64_t limit = NumberIn(group / version.limit);
    const std::int64_t used = NumberIn(group / version.used);
    // Version 1 writes "no limit" as a number larger than any memory.
    if (limit >= kNoLimit / 2 || used == kNoLimit) return;
    const std::int64_t taken = used - std::min(used, Droppable(group, version.droppable));
    left = std::min(left, std::max<std::int64_t>(0, limit - taken));
  });
  return left;
}

std::string Gib(std::int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (std::int64_t{1} << 30));
}

// Ways to need less memory. Sharding would divide what every data rank now holds whole.
std::string Hint(const NodeDemand& demand, const comm::ProcessGrid& grid, bool canonical) {
  std::vector<std::string> ways;
  if (grid.Data().Size() > 1 && grid.Shards() != comm::Sharding::kParameters) {
    std::int64_t whole = demand.terms.parameters;
    if (grid.Shards() == comm::Sharding::kNone) whole += demand.terms.moments;
    if (grid.Shards() < comm::Sharding::kGradients && !canonical) whole += demand.terms.gradients;
    ways.push_back(fmt::format("grid.sharding = parameters (shares out {} of it)", Gib(whole)));
  }
  ways.push_back("a smaller data.micro_batch");
  ways.push_back("model.recompute = full");
  if (demand.terms.tokens >= kWorthNaming) {
    ways.push_back("data.staging = stream (reads the tokens as they are needed)");
  }
  if (demand.where == "GPU") {
    ways.push_back("run.attention = own (cuDNN's backward pass may take a sixteenth of the card)");
  }
  if (demand.ranks > 1) ways.push_back(fmt::format("fewer ranks on a {}", demand.where));
  return fmt::format("What helps: {}.", fmt::join(ways, ", "));
}

}  // namespace

Available AvailableMemory(const std::string& proc, const std::string& cgroups) {
  const std::int64_t machine = MemoryInfo(proc + "/meminfo", "MemAvailable").value_or(kNoLimit),
                     groups = LeftByGroups(proc, cgroups);
  if (groups < machine) return {groups, "left by the control group's limit"};
  return {machine, "available on the node"};
}

NodeDemand DemandOf(const comm::Communicator& node, const device::MemoryTerms& mine,
                    const device::Stream& stream) {
  NodeDemand demand;
  comm::Communicator sharers;  // of this rank's card
  if (stream.OnGpu()) {
    const std::string card = device::GpuIds().at(static_cast<std::size_t>(stream.gpu->device));
    const std::vector<std::string> cards = node.Gather(card);
    const auto first = std::find(cards.begin(), cards.end(), card) - cards.begin();
    sharers = node.Split(static_cast<int>(first), node.Rank());
    demand.available = {device::FreeBytes(stream), fmt::format("free on {}", stream.gpu->name)};
    demand.where = "GPU";
  } else {
    demand.available = AvailableMemory();
  }
  const comm::Communicator& ranks = stream.OnGpu() ? sharers : node;
  demand.ranks = ranks.Size();
  demand.available.bytes = ranks.Min(demand.available.bytes);
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    demand.terms.*term.bytes = ranks.Sum(mine.*term.bytes);
  }
  return demand;
}

void CheckNodeMemory(const NodeDemand& demand, const comm::ProcessGrid& grid, bool canonical) {
  if (demand.Fits()) return;
  std::vector<std::string> terms;
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    const std::int64_t bytes = demand.terms.*term.bytes;
    if (bytes >= kWorthNaming) terms.push_back(fmt::format("{} {}", term.name, Gib(bytes)));
  }
  throw InputError(
      fmt::format("memory: {} of this {} plan{} {} ({}), but {} are {}; nothing was allocated",
                  demand.ranks == 1 ? "the one rank" : fmt::format("the {} ranks", demand.ranks),
                  demand.where, demand.ranks == 1 ? "s" : "", Gib(demand.terms.Total()),
                  fmt::join(terms, " + "), Gib(demand.available.bytes), demand.available.source),
      Hint(demand, grid, canonical));
}

}  // namespace trireme::comm
