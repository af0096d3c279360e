// Limits of a process, and the shared memory of its node.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include "trireme/tools/system.hpp"

namespace trireme::tools {

namespace {

std::int64_t Soft(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

std::string Bytes(std::int64_t bytes) {
  if (bytes < 0) return "unlimited";
  constexpr std::int64_t kKibi = 1024, kMebi = kKibi * kKibi, kGibi = kMebi * kKibi;
  if (bytes >= kGibi) {
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(kGibi));
  }
  if (bytes >= kMebi) return fmt::format("{} MiB", bytes / kMebi);
  return fmt::format("{} KiB", bytes / kKibi);
}

}  // namespace

Limits ReadLimits() {
  Limits limits;
  limits.locked_bytes = Soft(RLIMIT_MEMLOCK);
  limits.open_files = Soft(RLIMIT_NOFILE);
  limits.core_bytes = Soft(RLIMIT_CORE);
  struct statfs shm {};
  if (::statfs("/dev/shm", &shm) == 0) {
    limits.shm_bytes = static_cast<std::int64_t>(shm.f_blocks) * shm.f_bsize;
    limits.shm_free = static_cast<std::int64_t>(shm.f_bavail) * shm.f_bsize;
  }
  return limits;
}

std::string Limits::Text() const {
  return fmt::format("locked memory {}, open files {}, core {}, /dev/shm {}", Bytes(locked_bytes),
                     open_files < 0 ? "unlimited" : std::to_string(open_files), Bytes(core_bytes),
                     shm_bytes == 0 ? "missing" : Bytes(shm_bytes));
}

}  // namespace trireme::tools
