// A file that only grows by whole pieces, and a file replaced as a whole.
#include "trireme/report/append_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"

namespace trireme::report {

namespace {

Error CannotWrite(const std::string& path, const std::string& reason) {
  return RunError(fmt::format("{}: cannot be written: {}", path, reason),
                  "free some space or choose another job.output");
}

}  // namespace

std::string TemporaryName(const std::string& path) { return path + ".tmp"; }

void WriteWhole(const std::string& path, std::string_view text) {
  Replacement file(path, TemporaryName(path));
  file.Write(text);
  Place(file, path);
}

void Place(Replacement& file, const std::string& path) {
  if (const std::error_code error = file.Place()) throw CannotWrite(path, error.message());
}

AppendFile::AppendFile(const std::string& path, bool truncate) : path_(path) {
  constexpr mode_t kMode = 0666;  // the user's umask decides
  std::error_code ignored;
  // A link to a file is the user's way to keep a long log elsewhere, and is followed. One that
  // leads nowhere would make a file in a place that nobody has looked at.
  if (std::filesystem::is_symlink(path, ignored) && !std::filesystem::exists(path, ignored)) {
    throw CannotWrite(path, "it is a link that leads nowhere");
  }
  // Not blocking: the opening of a pipe without a reader would wait for one. Without effect on
  // files.
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

// A pipe or a terminal has nothing to flush; a disk that fails fails the checkpoint, too.
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

}  // namespace trireme::report
