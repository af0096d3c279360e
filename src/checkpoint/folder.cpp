// The folder of a run's checkpoints.
#include "folder.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <set>
#include <system_error>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kStepPrefix = "step_";
constexpr std::size_t kStepDigits = 8;

void RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw RunError(fmt::format("{}: cannot be removed: {}", path, error.message()));
}

// Type of the file at `path`; not_found if there is none. Throws an error with code `blame` and the
// reason if it cannot be determined.
fs::file_type TypeOf(const std::string& path, ExitCode blame = ExitCode::kBadInput) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::status_known(status)) return status.type();
  throw Error(blame, fmt::format("{}: cannot be looked at: {}", path, error.message()));
}

bool Exists(const std::string& path) {
  return TypeOf(path, ExitCode::kFailed) != fs::file_type::not_found;
}

// When a checkpoint was written; renaming its folder or changing its entries keeps this time.
fs::file_time_type TimeOf(const std::string& checkpoint) {
  std::error_code error;
  const auto time = fs::last_write_time(checkpoint + "/" + kRunFile, error);
  return error ? fs::file_time_type::min() : time;
}

// Runs `body`; a failure only adds a warning.
template <typename Body>
void Attempt(std::vector<std::string>& warnings, const Body& body) {
  try {
    body();
  } catch (const std::exception& problem) {
    warnings.emplace_back(problem.what());
  }
}

std::string WithoutEnding(const std::string& name) { return name.substr(0, name.rfind('.')); }

std::string LinkTarget(const std::string& link) {
  std::error_code error;
  return fs::read_symlink(link, error).filename().string();
}

// Why a name that begins like a step's is not a checkpoint.
std::string UnfinishedName(const std::string& name) {
  return name.find(kDamagedEnding) != std::string::npos ? "its bytes are damaged"
                                                        : "it is unfinished";
}

// Sequence number of a complete checkpoint, from the text of its run.json; 0 if it has none.
std::int64_t SequenceOf(const std::string& run_text) {
  try {
    const auto run = deck::ParseJson(run_text, kRunFile, kMostRunBytes);
    return deck::JsonObject(run, kRunFile).Integer("sequence");
  } catch (const std::exception&) {
    return 0;
  }
}

// Whether the folder is, or was meant to be, a single checkpoint.
bool LooksLikeCheckpoint(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (ParseStepName(name) || ParseStepName(fs::path(path).stem().string())) return true;
  for (const char* file : {kModelFile, kOptimizerFile, kChecksumsFile}) {
    if (TypeOf(path + "/" + file) != fs::file_type::not_found) return true;
  }
  return false;
}

// Removes the old checkpoints that neither `retention` nor a link keeps.
void Prune(const std::string& folder, const Retention& retention,
           std::vector<std::string>& warnings) {
  if (retention.keep == 0) return;
  const std::set<std::string> linked = {LinkTarget(folder + "/best"),
                                        LinkTarget(folder + "/latest")};
  std::int64_t kept = 0;
  for (const Found& found : ListComplete(folder)) {
    const auto step = ParseStepName(found.name);
    if (!step) continue;  // a replaced one, which is removed elsewhere
    const std::int64_t every = retention.keep_every_steps;
    const bool spared = every > 0 && *step % every == 0;
    if (++kept <= retention.keep || spared || linked.contains(found.name)) continue;
    const std::string path = folder + "/" + found.name;
    Attempt(warnings, [&] {
      // Renamed first, so that a killed run leaves no half-removed checkpoint under a valid name.
      Rename(path, path + kTemporaryEnding);
      RemoveAll(path + kTemporaryEnding);
    });
  }
}

}  // namespace

std::string StepName(std::int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::optional<std::int64_t> ParseStepName(const std::string& name) {
  const std::string prefix = kStepPrefix;
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  const std::string digits = name.substr(prefix.size());
  const bool numeric = digits.find_first_not_of("0123456789") == std::string::npos;
  if (!numeric || digits.size() < kStepDigits || digits.size() > 18) return std::nullopt;
  return std::stoll(digits);
}

Checksums ReadChecksums(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kChecksumsFile;
  return ParseChecksums(ReadText(path, kMaxChecksumsBytes), path);
}

FileSums ReadSums(const std::string& checkpoint, const std::string& file) {
  const Checksums all = ReadChecksums(checkpoint);
  const auto found = all.find(file);
  if (found != all.end() && !found->second.segments.empty()) return found->second;
  throw InputError(fmt::format("{}/{}: does not list {}", checkpoint, kChecksumsFile, file));
}

std::string WhyIncomplete(const std::string& checkpoint, std::string* run_text) {
  if (fs::path(checkpoint).filename().string().ends_with(kTemporaryEnding))
    return "it is unfinished";
  std::string missing;
  std::error_code error;
  for (const char* file : {kModelFile, kOptimizerFile, kRunFile, kChecksumsFile}) {
    const fs::file_status status = fs::status(checkpoint + "/" + file, error);
    if (!fs::status_known(status)) {
      return fmt::format("{} cannot be looked at: {}", file, error.message());
    }
    if (!fs::is_regular_file(status)) {
      missing += (missing.empty() ? "" : ", ") + std::string(file);
    } else if (const int closed = MayRead(checkpoint + "/" + file); closed != 0) {
      return fmt::format("{} cannot be read: {}", file, ErrorText(closed));
    }
  }
  if (!missing.empty()) return "it lacks " + missing;
  try {
    const Checksums sums = ReadChecksums(checkpoint);
    // Reads and checks the small run.json: a damaged one would count as the oldest checkpoint.
    std::string run = ReadText(checkpoint + "/" + kRunFile, kMostRunBytes);
    for (const std::string file : {kModelFile, kOptimizerFile, kRunFile}) {
      const auto found = sums.find(file);
      if (found == sums.end()) return fmt::format("{} does not list {}", kChecksumsFile, file);
      // Uses the text that was read: the file may have shrunk since.
      const std::int64_t size =
          file == kRunFile
              ? std::ssize(run)
              : static_cast<std::int64_t>(fs::file_size(checkpoint + "/" + file, error));
      if (error) return fmt::format("{} has no known size: {}", file, error.message());
      if (size != found->second.bytes) {
        return fmt::format("{} has {} bytes instead of {}", file, size, found->second.bytes);
      }
    }
    for (const Segment& segment : sums.at(kRunFile).segments) {
      if (Hash(run.data() + segment.offset, segment.length) != segment.hash) {
        return fmt::format("{} is damaged", kRunFile);
      }
    }
    if (run_text != nullptr) *run_text = std::move(run);
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return {};
}

std::vector<std::string> ListSteps(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (name.starts_with(kStepPrefix)) names.push_back(name);
  }
  if (error) throw InputError(fmt::format("{}: cannot be listed: {}", folder, error.message()));
  // Sorts by number first: step_100000000 is newer than step_99999999.
  std::ranges::sort(names, std::greater(), [](const std::string& name) {
    return std::pair(ParseStepName(name).value_or(-1), name);
  });
  return names;
}

std::vector<Found> ListComplete(const std::string& folder, std::vector<std::string>* incomplete) {
  // Greatest for the last written: sequence, whether `latest` points to it, time of writing, step.
  using Age = std::tuple<std::int64_t, bool, fs::file_time_type, std::int64_t>;
  const std::string latest = LinkTarget(folder + "/latest");
  std::vector<std::pair<Age, Found>> all;
  for (const std::string& name : ListSteps(folder)) {
    const std::string path = folder + "/" + name;
    const bool replaced = name.ends_with(kReplacedEnding);
    const auto step = ParseStepName(replaced ? WithoutEnding(name) : name);
    std::string run;
    const std::string reason = step ? WhyIncomplete(path, &run) : UnfinishedName(name);
    if (!reason.empty()) {
      if (incomplete != nullptr) incomplete->push_back(fmt::format("{}: {}", name, reason));
      continue;
    }
    const std::int64_t sequence = SequenceOf(run);
    all.push_back(
        {{sequence, sequence == 0 && name == latest, TimeOf(path), *step}, {name, sequence}});
  }
  std::ranges::stable_sort(all, std::greater(), &std::pair<Age, Found>::first);
  std::vector<Found> result;
  for (const auto& [age, found] : all) result.push_back(found);
  return result;
}

std::vector<std::string> RemoveLeftovers(const std::string& folder) {
  std::vector<std::string> warnings;
  for (const std::string& name : ListSteps(folder)) {
    if (!ParseStepName(WithoutEnding(name))) continue;
    const std::string path = folder + "/" + name;
    const std::string successor = folder + "/" + WithoutEnding(name);
    Attempt(warnings, [&] {
      if (name.ends_with(kTemporaryEnding)) {
        RemoveAll(path);
      } else if (name.ends_with(kReplacedEnding)) {
        if (Exists(successor)) {
          // Removed only beside a complete successor: it may be the run's only good checkpoint.
          if (WhyIncomplete(successor).empty()) return RemoveAll(path);
          SetAside(successor);
        }
        Rename(path, successor);
      }
    });
  }
  return warnings;
}

void Publish(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  const std::string replaced = path + kReplacedEnding;
  const bool exists = Exists(path);
  if (exists) Rename(path, replaced);
  try {
    Rename(path + kTemporaryEnding, path);
  } catch (const Error&) {
    if (exists) Rename(replaced, path);
    throw;
  }
  SyncPath(folder);
}

std::vector<std::string> TidyUp(const std::string& folder, const std::string& name, bool best,
                                const Retention& retention) {
  std::vector<std::string> warnings;
  const auto attempt = [&](const auto& body) { Attempt(warnings, body); };
  attempt([&] { MoveLink(name, folder + "/latest"); });
  if (best) attempt([&] { MoveLink(name, folder + "/best"); });
  attempt([&] { SyncPath(folder); });
  attempt([&] {
    if (const std::string old = folder + "/" + name + kReplacedEnding; Exists(old)) RemoveAll(old);
  });
  attempt([&] { Prune(folder, retention, warnings); });
  return warnings;
}

std::string SetAside(const std::string& checkpoint) {
  std::string aside = checkpoint + kDamagedEnding;
  for (int i = 2; Exists(aside); ++i) aside = fmt::format("{}{}{}", checkpoint, kDamagedEnding, i);
  RenameDurably(checkpoint, aside);
  return aside;
}

std::vector<std::string> ShareLines(const comm::Communicator& world,
                                    const std::vector<std::string>& lines) {
  constexpr char kEnd = '\x1e';  // ends a line, which may contain newlines
  std::string packed;
  for (const std::string& line : lines) packed += line + kEnd;
  packed = world.Broadcast(packed);
  std::vector<std::string> shared;
  for (std::size_t at = 0; at < packed.size();) {
    const std::size_t end = packed.find(kEnd, at);
    shared.push_back(packed.substr(at, end - at));
    at = end + 1;
  }
  return shared;
}

// Finds the checkpoint that a path on the command line means.

Choice Locate(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const fs::file_type type = TypeOf(path);
  if (type != fs::file_type::directory) {
    const char* what = type == fs::file_type::not_found ? "no such folder" : "is not a folder";
    throw InputError(fmt::format("{}: {}", path, what),
                     "give a run folder, its checkpoints folder, or one checkpoint");
  }
  if (LooksLikeCheckpoint(path)) {
    // A link such as `latest` may move during the reading, so its target is used.
    std::error_code error;
    if (fs::is_symlink(fs::symlink_status(path, error))) path = fs::canonical(path, error).string();
    if (error) {
      throw InputError(fmt::format("{}: cannot be followed: {}", path, error.message()));
    }
    if (const std::string reason = WhyIncomplete(path); !reason.empty()) {
      throw InputError(fmt::format("{}: is not a complete checkpoint: {}", path, reason),
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
  std::error_code error;
  if (fs::status(folder, error).type() == fs::file_type::not_found) return 0;
  const std::vector<Found> complete = ListComplete(folder);
  return complete.empty() ? 0 : complete.front().sequence;
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
