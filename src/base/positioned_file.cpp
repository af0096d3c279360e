// Reads and writes of one process at explicit offsets of a file.
#include "trireme/base/positioned_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "trireme/base/posix_file.hpp"

namespace trireme {

namespace {

// A client of a network file system may believe for a moment that a file which another node has
// just made does not exist.
constexpr int kOpenAttempts = 10;
constexpr std::chrono::milliseconds kOpenPause(100);

Descriptor Open(const std::string& path, PositionedFile::Access access) {
  const bool write = access == PositionedFile::Access::kWrite;
  const int flags = write ? O_RDWR | O_NOFOLLOW : O_RDONLY | O_NONBLOCK;
  for (int attempt = 1;; ++attempt) {
    Descriptor file(path, flags);
    if (file.Valid() || errno != ENOENT || !write || attempt == kOpenAttempts) return file;
    std::this_thread::sleep_for(kOpenPause);
  }
}

}  // namespace

PositionedFile::PositionedFile(const std::string& path, Access access, ExitCode blame)
    : path_(path), blame_(blame), file_(Open(path, access)) {
  if (!file_.Valid()) throw Complain("cannot be opened", errno);
}

Error PositionedFile::Complain(const std::string& what, int error) const {
  return {blame_, fmt::format("{}: {}: {}", path_, what, ErrorText(error))};
}

std::int64_t PositionedFile::Size() const {
  struct stat status = {};
  if (::fstat(file_.Get(), &status) != 0) throw Complain("its size is unknown", errno);
  return status.st_size;
}

void PositionedFile::Write(const void* data, std::int64_t bytes, std::int64_t offset) const {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put =
        Retry([&] { return ::pwrite(file_.Get(), from, static_cast<std::size_t>(bytes), offset); });
    if (put <= 0) {
      throw Complain(fmt::format("cannot be written at offset {}", offset),
                     put < 0 ? errno : ENOSPC);
    }
    from += put;
    offset += put;
    bytes -= put;
  }
}

void PositionedFile::Read(void* data, std::int64_t bytes, std::int64_t offset) const {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got =
        Retry([&] { return ::pread(file_.Get(), to, static_cast<std::size_t>(bytes), offset); });
    if (got < 0) throw Complain(fmt::format("cannot be read at offset {}", offset), errno);
    if (got == 0) {
      throw Error(blame_, fmt::format("{}: cannot be read at offset {}: the file ends there", path_,
                                      offset));
    }
    to += got;
    offset += got;
    bytes -= got;
  }
}

void PositionedFile::StartFlush(std::int64_t bytes, std::int64_t offset) const {
  if (bytes > 0) ::sync_file_range(file_.Get(), offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void PositionedFile::Sync() const {
  if (Retry([&] { return ::fsync(file_.Get()); }) != 0) throw Complain("cannot be synced", errno);
}

void PositionedFile::SyncData() const {
  if (Retry([&] { return ::fdatasync(file_.Get()); }) != 0) {
    throw Complain("cannot be synced", errno);
  }
}

void PositionedFile::ForgetCopies() const {
  ::posix_fadvise(file_.Get(), 0, 0, POSIX_FADV_DONTNEED);
}

void PositionedFile::ForgetCopies(std::int64_t bytes, std::int64_t offset) const {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t begin = offset / page * page;
  const std::int64_t end = (offset + bytes + page - 1) / page * page;
  if (bytes > 0) ::posix_fadvise(file_.Get(), begin, end - begin, POSIX_FADV_DONTNEED);
}

void PositionedFile::Close() {
  if (const int error = file_.Close(); error != 0) throw Complain("cannot be closed", error);
}

}  // namespace trireme
