// The C library's functions that open, look at and change files, counted and forwarded.
#include "call_count.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "forwarded_calls.hpp"

namespace trireme::test {

namespace {

std::atomic<bool> counting{false};  // constant-initialised: calls come before main()
std::array<std::atomic<std::int64_t>, kCountedKinds> counts{};
// Never destroyed: calls come after main(), too.
std::string& Root() {
  static auto* const root = new std::string;
  return *root;
}

bool Inside(const std::string& path) {
  const std::string& root = Root();
  return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

void Add(Counted kind, std::int64_t amount = 1) {
  counts[static_cast<std::size_t>(kind)] += amount;
}

// An operation on a name, as it was given: the tests give absolute ones, or none but that of an
// entry of an open folder.
void AddName(Counted kind, int folder, const char* name) {
  if (!counting) return;
  const int error = errno;
  if (Inside(name[0] == '/' || folder == AT_FDCWD ? name : PathOf(folder) + "/" + name)) Add(kind);
  errno = error;
}

void AddFile(Counted kind, int fd, std::int64_t amount = 1) {
  if (!counting || amount <= 0) return;
  const int error = errno;
  if (Inside(PathOf(fd))) Add(kind, amount);
  errno = error;
}

template <typename Forward>
int Opened(int folder, const char* name, int, const Forward& call) {
  AddName(Counted::kOpen, folder, name);
  return call();
}

}  // namespace

const char* NameOf(Counted kind) {
  constexpr std::array<const char*, kCountedKinds> kNames = {
      "open", "stat", "folder", "name", "remove", "sync", "reserve", "bytes read", "bytes written"};
  return kNames.at(static_cast<std::size_t>(kind));
}

CallCount::CallCount(const std::string& folder) {
  Root() = folder;
  for (auto& count : counts) count = 0;
  counting = true;
}

CallCount::~CallCount() { counting = false; }

CallCounts CallCount::Stop() {
  counting = false;
  CallCounts result{};
  for (std::size_t i = 0; i < kCountedKinds; ++i) result[i] = counts[i];
  return result;
}

}  // namespace trireme::test

using namespace trireme::test;  // NOLINT: the functions below are the program's own

extern "C" {

DEFINE_OPEN(open, openat, Opened)
DEFINE_OPEN(open64, openat64, Opened)

// One path: RESULT NAME(path) and RESULT NAME(path, TYPE).
#define DEFINE_PATH(KIND, RESULT, NAME)     \
  RESULT NAME(const char* path) noexcept {  \
    AddName(Counted::KIND, AT_FDCWD, path); \
    return NEXT(NAME)(path);                \
  }
#define DEFINE_PATH_AND(KIND, NAME, TYPE)          \
  int NAME(const char* path, TYPE what) noexcept { \
    AddName(Counted::KIND, AT_FDCWD, path);        \
    return NEXT(NAME)(path, what);                 \
  }
DEFINE_PATH(kRemove, int, unlink)
DEFINE_PATH(kRemove, int, remove)
DEFINE_PATH(kFolder, int, rmdir)
DEFINE_PATH_AND(kFolder, mkdir, mode_t)
DEFINE_PATH_AND(kStat, access, int)
DEFINE_PATH_AND(kStat, stat, struct stat*)
DEFINE_PATH_AND(kStat, lstat, struct stat*)
DEFINE_PATH_AND(kStat, stat64, struct stat64*)
DEFINE_PATH_AND(kStat, lstat64, struct stat64*)
DEFINE_PATH_AND(kStat, statvfs, struct statvfs*)
DEFINE_PATH_AND(kStat, statvfs64, struct statvfs64*)
DEFINE_PATH_AND(kReserve, truncate, off_t)
DEFINE_PATH_AND(kReserve, truncate64, off64_t)

int creat(const char* path, mode_t mode) {
  AddName(Counted::kOpen, AT_FDCWD, path);
  return NEXT(creat)(path, mode);
}
DIR* opendir(const char* path) {
  AddName(Counted::kOpen, AT_FDCWD, path);
  return NEXT(opendir)(path);
}
int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  AddName(Counted::kStat, folder, path);
  return NEXT(fstatat)(folder, path, status, flags);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  AddName(Counted::kRemove, folder, path);
  return NEXT(unlinkat)(folder, path, flags);
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  AddName(Counted::kFolder, folder, path);
  return NEXT(mkdirat)(folder, path, mode);
}
int rename(const char* from, const char* to) noexcept {
  AddName(Counted::kName, AT_FDCWD, to);
  return NEXT(rename)(from, to);
}
int symlink(const char* target, const char* path) noexcept {
  AddName(Counted::kName, AT_FDCWD, path);
  return NEXT(symlink)(target, path);
}
ssize_t readlink(const char* path, char* text, size_t size) noexcept {
  AddName(Counted::kName, AT_FDCWD, path);
  return NEXT(readlink)(path, text, size);
}

#define DEFINE_FSTAT(NAME, STATUS)                   \
  int NAME(int fd, struct STATUS* status) noexcept { \
    AddFile(Counted::kStat, fd);                     \
    return NEXT(NAME)(fd, status);                   \
  }
DEFINE_FSTAT(fstat, stat)
DEFINE_FSTAT(fstat64, stat64)

int fsync(int fd) {
  AddFile(Counted::kSync, fd);
  return NEXT(fsync)(fd);
}
int fdatasync(int fd) {
  AddFile(Counted::kSync, fd);
  return NEXT(fdatasync)(fd);
}
int ftruncate(int fd, off_t size) noexcept {
  AddFile(Counted::kReserve, fd);
  return NEXT(ftruncate)(fd, size);
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
  AddFile(Counted::kReserve, fd);
  return NEXT(fallocate)(fd, mode, offset, size);
}

#define DEFINE_PREAD(NAME, OFFSET)                               \
  ssize_t NAME(int fd, void* data, size_t size, OFFSET offset) { \
    const ssize_t got = NEXT(NAME)(fd, data, size, offset);      \
    AddFile(Counted::kReadBytes, fd, got);                       \
    return got;                                                  \
  }
DEFINE_PREAD(pread, off_t)
DEFINE_PREAD(pread64, off64_t)
#define DEFINE_PWRITE(NAME, OFFSET)                                    \
  ssize_t NAME(int fd, const void* data, size_t size, OFFSET offset) { \
    const ssize_t put = NEXT(NAME)(fd, data, size, offset);            \
    AddFile(Counted::kWrittenBytes, fd, put);                          \
    return put;                                                        \
  }
DEFINE_PWRITE(pwrite, off_t)
DEFINE_PWRITE(pwrite64, off64_t)

}  // extern "C"
