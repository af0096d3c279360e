// Finding the checkpoint that a path on the command line means.
#include <fmt/format.h>

#include <algorithm>
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

}  // namespace

Choice Locate(std::string path) {
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
    return {.folder = fs::path(path).parent_path().string(), .candidates = {path}, .others = {}};
  }
  const std::string inner = path + "/checkpoints";
  Choice choice;
  choice.folder = TypeOf(inner) == fs::file_type::directory ? inner : path;
  for (const Found& found : ListComplete(choice.folder, &choice.others)) {
    choice.candidates.push_back(choice.folder + "/" + found.name);
  }
  return choice;
}

Error NoneComplete(const Choice& choice) {
  std::string found;
  for (const std::string& other : choice.others) found += "\n  found " + other;
  if (found.empty()) found = "\n  found nothing of that name";
  return InputError(
      fmt::format("{}: holds no complete checkpoint\n  looked for step_NNNNNNNN with {}, "
                  "{}, {} and {}{}",
                  choice.folder, kModelFile, kOptimizerFile, kRunFile, kChecksumsFile, found));
}

std::int64_t LastSequence(const std::string& folder) {
  try {
    const std::vector<Found> complete = ListComplete(folder);
    return complete.empty() ? 0 : complete.front().sequence;
  } catch (const Error&) {
    return 0;  // no such folder yet
  }
}

bool Choice::Unstarted() const {
  const auto unfinished = [](const std::string& other) {
    return other.find(std::string(kTemporaryEnding) + ":") != std::string::npos;
  };
  return candidates.empty() && std::all_of(others.begin(), others.end(), unfinished);
}

std::string Find(const comm::Communicator& world, const std::string& path) {
  std::string found;
  world.Together([&] {
    if (!world.IsRoot()) return;
    const Choice choice = Locate(path);
    if (choice.candidates.empty()) throw NoneComplete(choice);
    found = choice.candidates.front();
  });
  return world.Broadcast(found);
}

}  // namespace trireme::checkpoint
