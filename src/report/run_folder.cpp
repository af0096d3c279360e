// The run folder, refused for a new run if it holds a checkpoint, and its files that only grow.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include "metrics_file.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {

// AppendFile, which grows by whole pieces, and WriteWhole, which replaces a file as a whole.

static Error CannotWrite(const std::string& path, const std::string& reason) {
  return RunError(fmt::format("{}: cannot be written: {}", path, reason),
                  "free some space or choose another job.output");
}

void WriteWhole(const std::string& path, std::string_view text) {
  Replacement file(path, DraftName(path));
  file.Write(text);
  Place(file, path);
}

void Place(Replacement& file, const std::string& path) {
  if (const std::error_code error = file.Place()) throw CannotWrite(path, error.message());
}

AppendFile::AppendFile(const std::string& path, bool truncate) : path_(path) {
  constexpr mode_t kMode = 0666;  // the user's umask decides
  std::error_code ignored;
  // A link to a file is followed: users keep a long log elsewhere this way. A dangling link is
  // refused: opening it would create a file in a place that nobody has checked.
  if (std::filesystem::is_symlink(path, ignored) && !std::filesystem::exists(path, ignored)) {
    throw CannotWrite(path, "it is a link that leads nowhere");
  }
  // O_NONBLOCK: opening a pipe without a reader would block. It has no effect on regular files.
  const int flags =
      O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | (truncate ? O_TRUNC : 0);
  file_ = open(path.c_str(), flags, kMode);
  if (file_ < 0) throw CannotWrite(path, std::strerror(errno));
  fcntl(file_, F_SETFL, O_APPEND);
  size_ = lseek(file_, 0, SEEK_END);
}

AppendFile::~AppendFile() { close(file_); }

bool AppendFile::Gone() const {
  struct stat mine {
  }, there{};
  if (fstat(file_, &mine) != 0 || !S_ISREG(mine.st_mode)) return false;
  if (stat(path_.c_str(), &there) != 0) return errno == ENOENT || errno == ENOTDIR;
  return mine.st_dev != there.st_dev || mine.st_ino != there.st_ino;
}

// Ignores errors: pipes have nothing to flush, and on a failing disk the checkpoint fails, too.
void AppendFile::Sync() const {
  Retry([this] { return fdatasync(file_); });
}

std::string AppendFile::Append(std::string_view text) {
  if (WriteAll(file_, text)) {
    size_ += static_cast<std::int64_t>(text.size());
    return {};
  }
  const int reason = errno;
  if (ftruncate(file_, size_) != 0) size_ = lseek(file_, 0, SEEK_END);
  return std::strerror(reason);
}

namespace {

namespace fs = std::filesystem;

// First and last line of a deck.in: without the last line, the file was cut off.
constexpr std::string_view kFirstLine =
    "# Deck of a run. Its last line is \"# end of the deck\": without it, it counts as cut off.\n";
constexpr std::string_view kLastLine = "# end of the deck\n";

// False for a run that died before or during its first checkpoint: there is nothing to continue,
// and its folder may be reused.
bool HoldsCheckpoint(const fs::path& checkpoints) {
  std::error_code ignored;
  const auto is_complete = [](const std::string& name) {
    return name.starts_with("step_") && !name.ends_with(".tmp");
  };
  return fs::exists(checkpoints, ignored) &&
         std::ranges::any_of(NamesIn(checkpoints.string()), is_complete);
}

// Whether the folder's deck.in was written by a run, in whole or in part.
bool IsOfARun(const fs::path& run) {
  std::ifstream file(run / "deck.in", std::ios::binary);
  const std::string deck{std::istreambuf_iterator<char>(file), {}};
  return file.is_open() && EndOf(deck) != DeckEnd::kUnmarked;
}

}  // namespace

void CheckRunFolder(const std::string& folder, bool resume) {
  if (folder.empty()) throw InputError("job.output is empty", "name a folder for the run");
  const fs::path run(folder);
  std::error_code ignored;
  if (fs::exists(run, ignored) && !fs::is_directory(run, ignored)) {
    throw InputError(folder + ": is a file, not a folder", "choose another job.name or job.output");
  }
  if (resume) return;
  if (HoldsCheckpoint(run / "checkpoints")) {
    throw InputError(
        folder + ": holds a run already",
        fmt::format("continue it with -r {}, or choose another job.name or job.output", folder));
  }
  for (const char* const name : {"deck.in", "log.txt", "metrics.jsonl", "summary.json"}) {
    // Replacing an empty file, a pipe or a device loses nothing.
    if (!fs::is_regular_file(run / name, ignored) || fs::is_empty(run / name, ignored)) continue;
    if (IsOfARun(run)) return;
    throw InputError(
        fmt::format("{}: is there already, and no run wrote it", (run / name).string()),
        "Choose another job.output: a run's own files would replace it.");
  }
}

void MakeOutputFolder(const std::string& folder) {
  if (const int error = MakeFolderDurably(folder); error != 0) {
    throw RunError(fmt::format("{}: cannot be made: {}", folder, ErrorText(error)),
                   "Choose another job.output.");
  }
}

void MakeRunFolder(const std::string& folder) {
  const std::string checkpoints = folder + "/checkpoints";
  if (const int error = MakeFolderDurably(checkpoints); error != 0) {
    throw InputError(fmt::format("{}: cannot be made: {}", checkpoints, ErrorText(error)),
                     "choose another job.output");
  }
}

void RecordEvent(const std::string& folder, const Event& event) noexcept {
  try {
    AppendFile(folder + "/metrics.jsonl", false).Append(ToJsonLine(event));
  } catch (const std::exception&) {
    // The event is then reported on the screen only.
  }
}

std::string MarkEnds(const std::string& deck) {
  const bool ends = deck.empty() || deck.back() == '\n';
  return fmt::format("{}{}{}{}", kFirstLine, deck, ends ? "" : "\n", kLastLine);
}

DeckEnd EndOf(const std::string& deck) {
  if (kFirstLine.starts_with(deck)) return DeckEnd::kMissing;
  if (!deck.starts_with(kFirstLine)) return DeckEnd::kUnmarked;
  const bool there = (deck + "\n").find(fmt::format("\n{}", kLastLine)) != std::string::npos;
  return there ? DeckEnd::kThere : DeckEnd::kMissing;
}

void PrepareRunFolder(const std::string& folder, bool resume, const std::string& deck) {
  CheckRunFolder(folder, resume);
  const fs::path run(folder), deck_path = run / "deck.in", checkpoints = run / "checkpoints";
  std::error_code ignored;
  const bool had_folder = fs::exists(run, ignored);
  const bool had_checkpoints = fs::exists(checkpoints, ignored);
  MakeRunFolder(folder);
  try {
    WriteWhole(deck_path.string(), MarkEnds(deck));
  } catch (...) {
    // Removes what would look like a run.
    if (!had_checkpoints) fs::remove(checkpoints, ignored);
    if (!had_folder) fs::remove(run, ignored);
    throw;
  }
}

}  // namespace trireme::report
