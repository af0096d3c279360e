// Finding the checkpoint that a path on the command line means.
#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "folder.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

namespace {

// Kind of the file at `path`; not_found if there is none. Throws InputError with the reason if that
// cannot be told.
fs::file_type TypeOf(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::status_known(status)) {
    throw InputError(fmt::format("{}: cannot be looked at: {}", path, error.message()));
  }
  return status.type();
}

// A folder that is, or was meant to be, one checkpoint.
bool LooksLikeCheckpoint(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (ParseStepName(name) || ParseStepName(fs::path(path).stem().string())) return true;
  for (const char* file : {kModelFile, kOptimizerFile, kChecksumsFile}) {
    if (TypeOf(path + "/" + file) != fs::file_type::not_found) return true;
  }
  return false;
}

// The last one written, which `latest` names; it need not have the highest step, for a run may have
// been continued from an earlier checkpoint. Without the link, the highest step.
std::string NewestIn(const std::string& folder) {
  std::error_code no_link;
  const fs::path latest = fs::read_symlink(folder + "/latest", no_link);
  if (!no_link) {
    const std::string path = folder + "/" + latest.filename().string();
    if (ParseStepName(latest.filename().string()) && WhyIncomplete(path).empty()) return path;
  }
  std::string found;
  for (const std::string& name : ListSteps(folder)) {
    const std::string path = folder + "/" + name;
    std::string reason = ParseStepName(name) ? WhyIncomplete(path) : "it is unfinished";
    if (reason.empty()) return path;
    if (name.ends_with(kReplacedEnding) && WhyIncomplete(path).empty()) {
      reason =
          "complete, but moved away by a run that was killed while it replaced it: rename it to " +
          fs::path(name).stem().string();
    }
    found += fmt::format("\n  found {}: {}", name, reason);
  }
  if (found.empty()) found = "\n  found nothing of that name";
  throw InputError(
      fmt::format("{}: holds no complete checkpoint\n  looked for step_NNNNNNNN with {}, "
                  "{}, {} and {}{}",
                  folder, kModelFile, kOptimizerFile, kRunFile, kChecksumsFile, found));
}

std::string FindHere(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const fs::file_type type = TypeOf(path);
  if (type == fs::file_type::not_found) {
    throw InputError(fmt::format("{}: no such folder", path),
                     "give a run folder, its checkpoints folder, or one checkpoint");
  }
  if (type != fs::file_type::directory) {
    throw InputError(fmt::format("{}: is not a folder", path),
                     "give a run folder, its checkpoints folder, or one checkpoint");
  }
  if (LooksLikeCheckpoint(path)) {
    // A link such as `latest` may move while the checkpoint is being read; its target stays.
    std::error_code error;
    if (fs::is_symlink(fs::symlink_status(path, error))) path = fs::canonical(path, error).string();
    if (error) {
      throw InputError(fmt::format("{}: cannot be followed: {}", path, error.message()));
    }
    if (const std::string reason = WhyIncomplete(path); !reason.empty()) {
      throw InputError(fmt::format("{}: is no complete checkpoint: {}", path, reason),
                       "take another checkpoint of the run");
    }
    return path;
  }
  const std::string inner = path + "/checkpoints";
  return NewestIn(TypeOf(inner) == fs::file_type::directory ? inner : path);
}

}  // namespace

std::string Find(const comm::Communicator& world, const std::string& path) {
  std::string found;
  world.Together([&] {
    if (world.IsRoot()) found = FindHere(path);
  });
  return world.Broadcast(found);
}

}  // namespace trireme::checkpoint
