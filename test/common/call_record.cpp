// The C library's functions that change files, recorded and forwarded. No POSIX guarantee follows
// from sync_file_range: it is forwarded alone.
#include "call_record.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <utility>

#include "forwarded_calls.hpp"

namespace trireme::test {

namespace {

using Kind = Call::Kind;

std::atomic<bool> recording{false};  // constant-initialised: calls come before main()
std::mutex mutex;                    // held over each recorded call, so that the order is true
// Never destroyed: calls come after main(), too.
std::string& Root() {
  static auto* const root = new std::string;
  return *root;
}
std::vector<Call>& Calls() {
  static auto* const calls = new std::vector<Call>;
  return *calls;
}

// Absolute path of a name as it was given, relative to an open folder or AT_FDCWD.
std::string Absolute(int folder, const char* name) {
  if (name[0] == '/') return name;
  if (folder != AT_FDCWD) return PathOf(folder) + "/" + name;
  std::array<char, 4096> current{};
  if (::getcwd(current.data(), current.size()) == nullptr) return {};
  return std::string(current.data()) + "/" + name;
}

// Sets `inside` to the path relative to the recorded folder; false for a path outside.
bool Inside(const std::string& path, std::string& inside) {
  const std::string& root = Root();
  if (path == root) {
    inside.clear();
    return true;
  }
  if (path.size() <= root.size() || path.compare(0, root.size(), root) != 0) return false;
  if (path[root.size()] != '/' || path.ends_with(" (deleted)")) return false;
  inside = path.substr(root.size() + 1);
  while (inside.ends_with('/')) inside.pop_back();
  return true;
}

void Add(Kind kind, std::string path, std::string other = {}, std::int64_t offset = 0,
         std::string data = {}) {
  Calls().push_back({kind, std::move(path), std::move(other), offset, std::move(data)});
}

// Forwards `call`; on success `record` adds what it did. errno stays the call's.
template <typename Forward, typename Record>
auto Recorded(const Forward& call, const Record& record) {
  if (!recording) return call();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto result = call();
  const int error = errno;
  if (recording && result >= 0) record(result);
  errno = error;
  return result;
}

template <typename Forward>
int Opened(int folder, const char* name, int flags, const Forward& call) {
  const bool changes = (flags & (O_CREAT | O_TRUNC)) != 0;
  if (!recording || !changes) return call();
  const std::lock_guard<std::mutex> lock(mutex);
  struct stat before = {};
  const bool existed = ::fstatat(folder, name, &before, 0) == 0;
  const int fd = call();
  const int error = errno;
  std::string path;
  if (fd >= 0 && Inside(PathOf(fd), path)) {
    if (!existed) Add(Kind::kCreate, path);
    if (existed && (flags & O_TRUNC) != 0 && before.st_size > 0) Add(Kind::kResize, path);
  }
  errno = error;
  return fd;
}

void AddWrite(int fd, std::int64_t offset, const char* data, ssize_t size) {
  std::string path;
  if (size <= 0 || !Inside(PathOf(fd), path)) return;
  Add(Kind::kWrite, path, {}, offset, std::string(data, static_cast<std::size_t>(size)));
}

void AddVector(int fd, std::int64_t offset, const iovec* parts, int count, ssize_t size) {
  std::string data;
  for (int i = 0; i < count; ++i) {
    data.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  AddWrite(fd, offset, data.data(), size);
}

// Offset at which a write() of `size` bytes began.
std::int64_t Before(int fd, ssize_t size) { return ::lseek64(fd, 0, SEEK_CUR) - size; }

void AddResize(int fd, std::int64_t size) {
  std::string path;
  if (Inside(PathOf(fd), path)) Add(Kind::kResize, path, {}, size);
}

void AddSync(int fd) {
  std::string path;
  if (Inside(PathOf(fd), path)) Add(Kind::kSync, path);
}

void AddName(Kind kind, int folder, const char* name, const std::string& other = {}) {
  std::string path;
  if (Inside(Absolute(folder, name), path)) Add(kind, path, other);
}

void AddTwo(Kind kind, const std::string& one, const std::string& two) {
  std::string path, other;
  if (Inside(one, path) && Inside(two, other)) Add(kind, path, other);
}

void AddGrowth(int fd, int mode, std::int64_t end) {
  struct stat now = {};
  if (mode == 0 && ::fstat(fd, &now) == 0 && now.st_size >= end) AddResize(fd, now.st_size);
}

}  // namespace

const char* NameOf(Kind kind) {
  constexpr std::array<const char*, 9> kNames = {"create", "mkdir", "symlink", "link", "rename",
                                                 "remove", "write", "resize",  "sync"};
  return kNames.at(static_cast<std::size_t>(kind));
}

CallRecord::CallRecord(const std::string& folder) {
  const std::lock_guard<std::mutex> lock(mutex);
  Root() = folder;
  Calls().clear();
  recording = true;
}

CallRecord::~CallRecord() { recording = false; }

std::vector<Call> CallRecord::Stop() {
  const std::lock_guard<std::mutex> lock(mutex);
  recording = false;
  return std::exchange(Calls(), {});
}

}  // namespace trireme::test

using namespace trireme::test;  // NOLINT: the functions below are the program's own

extern "C" {

DEFINE_OPEN(open, openat, Opened)
DEFINE_OPEN(open64, openat64, Opened)

#define DEFINE_CREAT(NAME)                                                                    \
  int NAME(const char* path, mode_t mode) {                                                   \
    return Opened(AT_FDCWD, path, O_CREAT | O_TRUNC, [&] { return NEXT(NAME)(path, mode); }); \
  }
DEFINE_CREAT(creat)
DEFINE_CREAT(creat64)

ssize_t write(int fd, const void* data, size_t size) {
  return Recorded(
      [&] { return NEXT(write)(fd, data, size); },
      [&](ssize_t put) { AddWrite(fd, Before(fd, put), static_cast<const char*>(data), put); });
}
ssize_t writev(int fd, const iovec* parts, int count) {
  return Recorded([&] { return NEXT(writev)(fd, parts, count); },
                  [&](ssize_t put) { AddVector(fd, Before(fd, put), parts, count, put); });
}

#define DEFINE_PWRITE(NAME, OFFSET)                                                       \
  ssize_t NAME(int fd, const void* data, size_t size, OFFSET offset) {                    \
    return Recorded(                                                                      \
        [&] { return NEXT(NAME)(fd, data, size, offset); },                               \
        [&](ssize_t put) { AddWrite(fd, offset, static_cast<const char*>(data), put); }); \
  }
DEFINE_PWRITE(pwrite, off_t)
DEFINE_PWRITE(pwrite64, off64_t)

#define DEFINE_PWRITEV(NAME, OFFSET)                                                 \
  ssize_t NAME(int fd, const iovec* parts, int count, OFFSET offset) {               \
    return Recorded([&] { return NEXT(NAME)(fd, parts, count, offset); },            \
                    [&](ssize_t put) { AddVector(fd, offset, parts, count, put); }); \
  }
DEFINE_PWRITEV(pwritev, off_t)
DEFINE_PWRITEV(pwritev64, off64_t)

int fsync(int fd) {
  return Recorded([&] { return NEXT(fsync)(fd); }, [&](int) { AddSync(fd); });
}
int fdatasync(int fd) {
  return Recorded([&] { return NEXT(fdatasync)(fd); }, [&](int) { AddSync(fd); });
}

#define DEFINE_TRUNCATE(NAME, OFFSET)                                                            \
  int f##NAME(int fd, OFFSET size) noexcept {                                                    \
    return Recorded([&] { return NEXT(f##NAME)(fd, size); }, [&](int) { AddResize(fd, size); }); \
  }                                                                                              \
  int NAME(const char* path, OFFSET size) noexcept {                                             \
    return Recorded([&] { return NEXT(NAME)(path, size); },                                      \
                    [&](int) {                                                                   \
                      std::string inside;                                                        \
                      if (Inside(Absolute(AT_FDCWD, path), inside))                              \
                        Add(Kind::kResize, inside, {}, size);                                    \
                    });                                                                          \
  }
DEFINE_TRUNCATE(truncate, off_t)
DEFINE_TRUNCATE(truncate64, off64_t)

#define DEFINE_FALLOCATE(NAME, OFFSET)                                  \
  int NAME(int fd, int mode, OFFSET offset, OFFSET size) {              \
    return Recorded([&] { return NEXT(NAME)(fd, mode, offset, size); }, \
                    [&](int) { AddGrowth(fd, mode, offset + size); });  \
  }
DEFINE_FALLOCATE(fallocate, off_t)
DEFINE_FALLOCATE(fallocate64, off64_t)
#define DEFINE_POSIX_FALLOCATE(NAME, OFFSET)                           \
  int NAME(int fd, OFFSET offset, OFFSET size) {                       \
    return Recorded([&] { return NEXT(NAME)(fd, offset, size); },      \
                    [&](int error) {                                   \
                      if (error == 0) AddGrowth(fd, 0, offset + size); \
                    });                                                \
  }
DEFINE_POSIX_FALLOCATE(posix_fallocate, off_t)
DEFINE_POSIX_FALLOCATE(posix_fallocate64, off64_t)

int rename(const char* from, const char* to) noexcept {
  return Recorded(
      [&] { return NEXT(rename)(from, to); },
      [&](int) { AddTwo(Kind::kRename, Absolute(AT_FDCWD, from), Absolute(AT_FDCWD, to)); });
}
int renameat(int folder, const char* from, int folder_to, const char* to) noexcept {
  return Recorded(
      [&] { return NEXT(renameat)(folder, from, folder_to, to); },
      [&](int) { AddTwo(Kind::kRename, Absolute(folder, from), Absolute(folder_to, to)); });
}
int renameat2(int folder, const char* from, int folder_to, const char* to,
              unsigned flags) noexcept {
  return Recorded(
      [&] { return NEXT(renameat2)(folder, from, folder_to, to, flags); },
      [&](int) { AddTwo(Kind::kRename, Absolute(folder, from), Absolute(folder_to, to)); });
}
int link(const char* from, const char* to) noexcept {
  return Recorded(
      [&] { return NEXT(link)(from, to); },
      [&](int) { AddTwo(Kind::kLink, Absolute(AT_FDCWD, to), Absolute(AT_FDCWD, from)); });
}
int linkat(int folder, const char* from, int folder_to, const char* to, int flags) noexcept {
  return Recorded(
      [&] { return NEXT(linkat)(folder, from, folder_to, to, flags); },
      [&](int) { AddTwo(Kind::kLink, Absolute(folder_to, to), Absolute(folder, from)); });
}
int symlink(const char* target, const char* path) noexcept {
  return Recorded([&] { return NEXT(symlink)(target, path); },
                  [&](int) { AddName(Kind::kSymlink, AT_FDCWD, path, target); });
}
int symlinkat(const char* target, int folder, const char* path) noexcept {
  return Recorded([&] { return NEXT(symlinkat)(target, folder, path); },
                  [&](int) { AddName(Kind::kSymlink, folder, path, target); });
}
int unlink(const char* path) noexcept {
  return Recorded([&] { return NEXT(unlink)(path); },
                  [&](int) { AddName(Kind::kRemove, AT_FDCWD, path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  return Recorded([&] { return NEXT(unlinkat)(folder, path, flags); },
                  [&](int) { AddName(Kind::kRemove, folder, path); });
}
int rmdir(const char* path) noexcept {
  return Recorded([&] { return NEXT(rmdir)(path); },
                  [&](int) { AddName(Kind::kRemove, AT_FDCWD, path); });
}
int remove(const char* path) noexcept {
  return Recorded([&] { return NEXT(remove)(path); },
                  [&](int) { AddName(Kind::kRemove, AT_FDCWD, path); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  return Recorded([&] { return NEXT(mkdir)(path, mode); },
                  [&](int) { AddName(Kind::kMakeFolder, AT_FDCWD, path); });
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return Recorded([&] { return NEXT(mkdirat)(folder, path, mode); },
                  [&](int) { AddName(Kind::kMakeFolder, folder, path); });
}

}  // extern "C"
