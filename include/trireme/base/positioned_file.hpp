// PositionedFile: reads and writes of one process at explicit offsets of a file. No MPI: a thread
// may use it while the rank trains on.
#ifndef TRIREME_BASE_POSITIONED_FILE_HPP_
#define TRIREME_BASE_POSITIONED_FILE_HPP_

#include <cstdint>
#include <string>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"

namespace trireme {

class PositionedFile {
 public:
  enum class Access { kRead, kWrite };

  // Opens the existing file `path`; kWrite reads as well. All errors carry `blame`, the path, the
  // offset and the system's reason.
  PositionedFile(const std::string& path, Access access, ExitCode blame);

  const std::string& Path() const { return path_; }
  std::int64_t Size() const;  // bytes

  // All `bytes` bytes, through short transfers and interruptions.
  void Write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  void Read(void* data, std::int64_t bytes, std::int64_t offset) const;

  // Asks the system to begin moving these written bytes to the disk, and does not wait for them. A
  // system that does not moves them at the next flush.
  void StartFlush(std::int64_t bytes, std::int64_t offset) const;
  // Flushes what was written to the disk.
  void Sync() const;
  // The same, but for facts about the file that reading it does not need, such as its date.
  void SyncData() const;
  // Asks the system to forget its copies of synced bytes, so that the next read comes from the disk
  // or the server. A system that does not serves them from memory.
  void ForgetCopies() const;
  // The same for a part of the file, widened to whole pages.
  void ForgetCopies(std::int64_t bytes, std::int64_t offset) const;
  void Close();

 private:
  Error Complain(const std::string& what, int error) const;

  std::string path_;
  ExitCode blame_;
  Descriptor file_;
};

}  // namespace trireme

#endif  // TRIREME_BASE_POSITIONED_FILE_HPP_
