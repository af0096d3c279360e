// SharedMemory: the file, its space and its mapping.
#include "trireme/comm/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

namespace {

// Maps the file of that name, created first if `makes`. On failure returns null and sets errno.
std::byte* Map(const std::string& name, std::int64_t bytes, bool makes) {
  const int file = ::shm_open(name.c_str(), makes ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (file < 0) return nullptr;
  // Reserves the space: otherwise a full /dev/shm would kill the process at a write.
  int error = 0;
  do {
    if (makes) error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  void* base = MAP_FAILED;
  if (error == 0) {
    base = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                  file, 0);
    if (base == MAP_FAILED) error = errno;
  }
  ::close(file);
  errno = error;
  return error == 0 ? static_cast<std::byte*>(base) : nullptr;
}

}  // namespace

SharedMemory::SharedMemory(const Communicator& group, std::int64_t bytes)
    : bytes_(std::max<std::int64_t>(bytes, 1)) {
  const std::string name = group.Broadcast(fmt::format(
      "/trireme.{}.{}.{:x}", ::getuid(), ::getpid(), static_cast<std::int64_t>(Seconds() * 1e9)));
  // Reserving takes as long as clearing the memory; meanwhile the other ranks sleep.
  if (group.IsRoot()) data_ = Map(name, bytes_, true);
  int mine = group.IsRoot() && data_ == nullptr ? errno : 0;
  group.QuietBarrier();
  if (!group.IsRoot()) {
    data_ = Map(name, bytes_, false);
    if (data_ == nullptr) mine = errno;
  }
  // The first rank's error is the one to report: without its file the others cannot succeed.
  error_ = static_cast<int>(group.Max(std::int64_t{group.IsRoot() ? mine : 0}));
  if (error_ == 0) error_ = static_cast<int>(group.Max(std::int64_t{mine}));
  if (group.IsRoot()) ::shm_unlink(name.c_str());
  if (error_ == 0 || data_ == nullptr) return;
  ::munmap(data_, static_cast<std::size_t>(bytes_));
  data_ = nullptr;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
}

std::string RoomForSharedMemory() {
  struct statvfs room {};
  if (::statvfs("/dev/shm", &room) != 0) return "There is no /dev/shm.";
  const auto bytes = [&](fsblkcnt_t blocks) {
    return static_cast<std::int64_t>(blocks * room.f_frsize);
  };
  return fmt::format(
      "/dev/shm has {} left of {}. A container has more with --shm-size or --ipc=host.",
      Mebibytes(bytes(room.f_bavail)), Mebibytes(bytes(room.f_blocks)));
}

}  // namespace trireme::comm
