// Small files shared between jobs, through POSIX calls: read within bounds, never through a
// symbolic link, and written durably under a name that nothing else has.
#ifndef TRIREME_SRC_JOB_SMALL_FILE_HPP_
#define TRIREME_SRC_JOB_SMALL_FILE_HPP_

#include <cerrno>
#include <cstddef>
#include <string>

namespace trireme::job {

// Repeats a system call that a signal interrupted.
template <typename Call>
auto Retry(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// An open file or pipe; closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  bool Valid() const { return number_ >= 0; }
  int Get() const { return number_; }
  // Returns 0 or an errno: a network file system may report a full disk only now. After EINTR the
  // descriptor is gone all the same.
  int Close();

 private:
  int number_;
};

std::string ErrorText(int error);  // of an errno value: "No space left on device"

struct SmallFile {
  bool exists = false;
  std::string fault;        // why an existing one cannot be used; empty: `text` is its content
  bool unreadable = false;  // the fault is a failed call, and may pass
  std::string text;
};

// Reads at most `most_bytes`; a longer file, a symbolic link, a folder and the like have a fault.
SmallFile ReadSmallFile(const std::string& path, std::size_t most_bytes);

// Creates the file, which must not exist, and syncs it. Throws RunError with path and reason and
// leaves nothing there.
void CreateDurably(const std::string& path, const std::string& text, const std::string& hint);

// Flushes the entries of a folder. Throws RunError.
void SyncFolder(const std::string& folder);

}  // namespace trireme::job

#endif  // TRIREME_SRC_JOB_SMALL_FILE_HPP_
