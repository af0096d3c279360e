// Open files of the operating system, and what the disk must know of them.
#ifndef TRIREME_BASE_DESCRIPTOR_HPP_
#define TRIREME_BASE_DESCRIPTOR_HPP_

#include <cerrno>
#include <string>
#include <utility>

namespace trireme {

// Repeats a system call that a signal interrupted.
template <typename Call>
auto Retry(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

std::string ErrorText(int error);  // of an errno value: "No space left on device"

// An open file, folder or pipe; closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  // Opens a file; invalid with errno set if that fails. A new one has the user's umask.
  Descriptor(const std::string& path, int flags);
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  bool Valid() const { return number_ >= 0; }
  int Get() const { return number_; }
  // Returns 0 or an errno: a network file system may report a full disk only now. After EINTR the
  // descriptor is gone all the same, so the call is not repeated.
  int Close();

 private:
  int number_;
};

// Flushes a file, or the entries of a folder, to the disk. Returns 0 or an errno.
int SyncToDisk(const std::string& path);

// Makes the folder and those above it that are missing, each durable in the folder above it.
// Returns 0 or an errno; ENOTDIR if something else has that name.
int MakeFolderDurably(const std::string& folder);

}  // namespace trireme

#endif  // TRIREME_BASE_DESCRIPTOR_HPP_
