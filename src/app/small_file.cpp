// Small files shared between jobs.
#include "small_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/error.hpp"
#include "trireme/base/new_file.hpp"

namespace trireme::app {

namespace {

// Openings of a file that another machine replaces over and over (ESTALE on NFS).
constexpr int kStaleRetries = 10;

// Reads an open file; returns 0 or an errno.
int ReadAll(const Descriptor& file, std::size_t most_bytes, SmallFile& result) {
  struct stat status = {};
  if (::fstat(file.Get(), &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) {
    result.fault = "is not a plain file";
    return 0;
  }
  // One byte more than allowed, so that a file that grows meanwhile is found out too.
  std::string buffer(most_bytes + 1, '\0');
  std::size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t got =
        Retry([&] { return ::read(file.Get(), buffer.data() + done, buffer.size() - done); });
    if (got < 0) return errno;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  if (done > most_bytes) {
    result.fault = fmt::format("is longer than {} bytes", most_bytes);
  } else {
    result.text = buffer.substr(0, done);
  }
  return 0;
}

}  // namespace

SmallFile ReadSmallFile(const std::string& path, std::size_t most_bytes) {
  SmallFile result;
  int error = ESTALE;
  for (int attempt = 0; error == ESTALE && attempt < kStaleRetries; ++attempt) {
    // O_NONBLOCK: opening a named pipe would wait for its writer.
    const Descriptor file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    error = file.Valid() ? ReadAll(file, most_bytes, result) : errno;
  }
  result.exists = error != ENOENT;
  if (error == ELOOP) {
    result.fault = "is a symbolic link";
  } else if (error != 0 && result.exists) {
    result.fault = "cannot be read: " + ErrorText(error);
    result.unreadable = true;
  }
  return result;
}

void CreateDurably(const std::string& path, const std::string& text, const std::string& hint) {
  Descriptor file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!file.Valid()) {
    throw RunError(fmt::format("{}: cannot be created: {}", path, ErrorText(errno)), hint);
  }
  const bool synced = WriteAll(file.Get(), text) && Retry([&] { return ::fsync(file.Get()); }) == 0;
  int error = synced ? 0 : errno;
  if (error == 0) error = file.Close();
  if (error == 0) return;
  ::unlink(path.c_str());
  throw RunError(fmt::format("{}: cannot be written: {}", path, ErrorText(error)), hint);
}

}  // namespace trireme::app
