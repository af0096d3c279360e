// LackOfRoom: each host's need by a sum over its ranks, its free space by its first one.
#include "local_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "local_file.hpp"
#include "trireme/base/posix_file.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

namespace {

// Free bytes of the file system that will hold the folder, which is made later; -1: unknown.
std::int64_t FreeFor(fs::path folder) {
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return FreeBytes(folder);
}

// Bytes of the run's files that are there already.
std::int64_t Present(const std::string& run) {
  std::int64_t bytes = 0;
  for (const std::string& name : ListLocal(run)) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(run + "/" + name, error);
    if (!error) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

}  // namespace

std::string LackOfRoom(const comm::Communicator& world, const comm::Communicator& host,
                       const LocalNeed& need) {
  const std::int64_t one = host.Sum(need.bytes);
  std::string lack;
  if (host.IsRoot()) {
    const std::int64_t needed = std::max<std::int64_t>(need.at_once * one - Present(need.run), 0);
    const std::int64_t left = FreeFor(need.local);
    if (left >= 0 && left < needed) {
      lack = fmt::format(
          "{} on {} has {} free, and local checkpoints need {} there: {} at once of {} each",
          need.local, need.host, Mebibytes(left), Mebibytes(needed), need.at_once, Mebibytes(one));
    }
  }
  const std::int64_t hosts = world.Sum(std::int64_t{lack.empty() ? 0 : 1});
  if (hosts == 0) return {};
  const std::int64_t first = world.Min(std::int64_t{lack.empty() ? world.Size() : world.Rank()});
  lack = world.Broadcast(lack, static_cast<int>(first));
  if (hosts > 1) lack += fmt::format("; hosts that lack room: {}", hosts);
  return lack;
}

}  // namespace trireme::checkpoint
