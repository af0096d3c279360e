// Descriptor: an open file of the operating system.
#ifndef TRIREME_SRC_CHECKPOINT_DESCRIPTOR_HPP_
#define TRIREME_SRC_CHECKPOINT_DESCRIPTOR_HPP_

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace trireme::checkpoint {

// Repeats a system call that a signal interrupted.
template <typename Call>
auto Retry(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// An open file; closed at the end of the scope.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : fd_(Retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, kMode); })) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool Valid() const { return fd_ >= 0; }
  int Get() const { return fd_; }
  // Returns 0 or an errno: a network file system may report a full disk only now. After EINTR the
  // descriptor is gone all the same, so the call is not repeated.
  int Close() {
    const int result = ::close(fd_);
    fd_ = -1;
    return result == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  static constexpr mode_t kMode = 0666;  // the user's umask decides
  int fd_;
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_DESCRIPTOR_HPP_
