// A file that only grows by whole pieces, and a file replaced as a whole.
#include "append_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "trireme/base/error.hpp"

namespace trireme::monitor {

namespace {

constexpr mode_t kMode = 0666;  // the user's umask decides

// All of `text`, through short writes and interruptions. False with errno set.
bool WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    if (written == 0) {
      errno = ENOSPC;
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

Error CannotWrite(const std::string& path, int reason) {
  return RunError(fmt::format("{}: cannot be written: {}", path, std::strerror(reason)),
                  "free some space or choose another job.output");
}

}  // namespace

void WriteWhole(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (file < 0) throw CannotWrite(path, errno);
  bool ok = WriteAll(file, text) && fsync(file) == 0;
  int reason = errno;
  if (close(file) != 0 && ok) {
    ok = false;
    reason = errno;
  }
  if (ok && std::rename(temporary.c_str(), path.c_str()) != 0) {
    ok = false;
    reason = errno;
  }
  if (ok) return;
  unlink(temporary.c_str());
  throw CannotWrite(path, reason);
}

AppendFile::AppendFile(const std::string& path, bool truncate) : path_(path) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (truncate ? O_TRUNC : 0);
  file_ = open(path.c_str(), flags, kMode);
  if (file_ < 0) throw CannotWrite(path, errno);
  size_ = lseek(file_, 0, SEEK_END);
}

AppendFile::~AppendFile() { close(file_); }

std::string AppendFile::Append(std::string_view text) {
  if (WriteAll(file_, text)) {
    size_ += static_cast<std::int64_t>(text.size());
    return {};
  }
  const int reason = errno;
  if (ftruncate(file_, size_) != 0) size_ = lseek(file_, 0, SEEK_END);
  return std::strerror(reason);
}

}  // namespace trireme::monitor
