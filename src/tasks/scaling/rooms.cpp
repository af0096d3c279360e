// Rooms: each node's ranks tell each other what they may use; counts are summed over nodes.
#include "rooms.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <sstream>

#include "trireme/device/cores.hpp"

namespace trireme::tasks {

namespace {

// Rank, threads and places of this rank, as text.
std::string Pack(const app::Job& job) {
  if (job.gpu != nullptr)
    return fmt::format("{} 1 {}", job.World().Rank(), job.gpu->Context().address);
  std::string text = fmt::format("{} {}", job.World().Rank(), job.stream.threads);
  for (const device::HardwareThread& thread : device::DescribeThreads(job.signals->UsableCores())) {
    text += fmt::format(" {}", thread.core);
  }
  return text;
}

}  // namespace

Rooms::Rooms(const app::Job& job)
    : world_(job.World()), first_(job.runtime->Node().IsRoot()), threads_(job.stream.threads) {
  for (const std::string& text : job.runtime->Node().Gather(Pack(job))) {
    std::istringstream words(text);
    Neighbour neighbour;
    words >> neighbour.rank >> neighbour.threads;
    for (std::string place; words >> place;) neighbour.places.push_back(place);
    node_.push_back(std::move(neighbour));
  }
}

Room Rooms::Of(int ranks) const {
  std::set<std::string> places;
  std::int64_t threads = 0;
  for (const Neighbour& neighbour : node_) {
    if (neighbour.rank >= ranks) continue;
    threads += neighbour.threads;
    places.insert(neighbour.places.begin(), neighbour.places.end());
  }
  const auto cores = static_cast<std::int64_t>(places.size());
  const bool counts = first_ && threads > 0;
  Room room;
  room.nodes = static_cast<int>(world_.Sum(std::int64_t{counts}));
  room.threads = static_cast<int>(world_.Max(std::int64_t{world_.Rank() < ranks ? threads_ : 0}));
  room.cores = static_cast<int>(world_.Sum(counts ? cores : 0));
  room.oversubscribed = world_.Max(std::int64_t{threads > cores}) > 0;
  return room;
}

}  // namespace trireme::tasks
