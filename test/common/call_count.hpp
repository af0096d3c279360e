// Number of the system calls that one process makes on the files of one folder, by functions of the
// C library's names in the test's executable, which forward to the real ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::test {

// Metadata operations, then bytes of positioned transfers.
enum class Counted {
  kOpen,     // of a file or a folder
  kStat,     // stat, lstat, fstat, fstatat, statvfs, access
  kFolder,   // mkdir, rmdir
  kName,     // rename, link, symlink, readlink
  kRemove,   // unlink, unlinkat, remove
  kSync,     // fsync, fdatasync
  kReserve,  // fallocate, ftruncate, truncate
  kReadBytes,
  kWrittenBytes,
};
inline constexpr std::size_t kCountedKinds = 9;
using CallCounts = std::array<std::int64_t, kCountedKinds>;

const char* NameOf(Counted kind);

// Counts the calls of all threads on objects within `folder` from construction on, failed ones too.
// One at a time.
class CallCount {
 public:
  // folder: an existing folder, by its canonical path.
  explicit CallCount(const std::string& folder);
  ~CallCount();
  CallCount(const CallCount&) = delete;
  CallCount& operator=(const CallCount&) = delete;

  CallCounts Stop();  // ends the count and returns it
};

}  // namespace trireme::test
