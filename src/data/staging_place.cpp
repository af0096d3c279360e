// StagingPlace: the choice of a folder by the room that every node has in it.
#include "trireme/data/staging_place.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/file_system.hpp"
#include "trireme/base/posix_file.hpp"

namespace trireme::data {

namespace {

constexpr const char* kSharedMemory = "/dev/shm";

std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "this host";
  return name.data();
}

// Reason why a folder cannot take `bytes`; empty: it can.
std::string Lack(const std::string& folder, std::int64_t bytes) {
  struct stat status = {};
  if (::stat(folder.c_str(), &status) != 0) return ErrorText(errno);
  if (!S_ISDIR(status.st_mode)) return ErrorText(ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return ErrorText(errno);
  const std::int64_t left = FreeBytes(folder);
  if (left < 0 || left >= bytes) return {};
  return Mebibytes(left) + " are free";
}

}  // namespace

bool TakesMemory(const std::string& folder) {
  struct statfs status = {};
  if (Retry([&] { return ::statfs(folder.c_str(), &status); }) != 0) return false;
  const FileSystemType* const type = FindFileSystem(FileSystemNumber(status.f_type));
  return type != nullptr && type->memory;
}

std::vector<std::string> StagingPlace::Candidates(const std::string& staging_path) {
  if (!staging_path.empty()) return {staging_path};
  const char* const temporary = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  return {kSharedMemory, temporary != nullptr ? temporary : ""};
}

void StagingPlace::Add(const StagedCopies& copies) {
  total_.files += copies.files;
  total_.bytes += copies.bytes;
  total_.nodes = std::max(total_.nodes, copies.nodes);
  total_.seconds += copies.seconds;
}

void StagingPlace::Choose(const comm::Communicator& world, const comm::Communicator& node,
                          const std::vector<std::string>& candidates, std::int64_t bytes) {
  folder_.clear();
  total_ = {};
  std::string lacks;  // here
  for (const std::string& candidate : candidates) {
    std::string lack;
    if (node.IsRoot()) lack = candidate.empty() ? "$TMPDIR is not set" : Lack(candidate, bytes);
    if (!lack.empty()) {
      lacks += lacks.empty() ? "" : "; ";
      lacks += candidate.empty() ? lack : fmt::format("{}: {}", candidate, lack);
    }
    if (world.Min(std::int64_t{lack.empty()}) == 0) continue;
    folder_ = candidate;
    break;
  }
  world.Together([&] {
    if (!folder_.empty() || lacks.empty()) return;
    throw InputError(
        fmt::format("data.staging = node: {} has no room for {} of tokens: {}", HostName(),
                    Mebibytes(bytes), lacks),
        "data.staging_path names another folder of the nodes; data.staging = stream needs none.");
  });
  in_memory_ = world.Max(std::int64_t{node.IsRoot() && TakesMemory(folder_)}) > 0;
}

}  // namespace trireme::data
