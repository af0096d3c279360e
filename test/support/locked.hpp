// A file or folder that this process may not use for a while: for tests of what is said about it.
#ifndef TRIREME_TEST_SUPPORT_LOCKED_HPP_
#define TRIREME_TEST_SUPPORT_LOCKED_HPP_

#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace trireme {

// Gives `path` the mode (0: closed to all, 0555: nothing may be made there) and, since root may do
// everything, steps down to user nobody; both are undone at the end of the scope.
class Locked {
 public:
  Locked(const std::string& path, mode_t mode) : path_(path) {
    struct stat status = {};
    good_ = ::stat(path.c_str(), &status) == 0 && ::chmod(path.c_str(), mode) == 0;
    mode_ = status.st_mode & kModeBits;
    if (good_ && was_root_) good_ = ::seteuid(kNobody) == 0;
  }
  ~Locked() {
    if (was_root_ && ::seteuid(0) != 0) _exit(1);
    ::chmod(path_.c_str(), mode_);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  bool Good() const { return good_; }

 private:
  static constexpr uid_t kNobody = 65534;
  static constexpr mode_t kModeBits = 07777;

  std::string path_;
  mode_t mode_ = 0;
  bool was_root_ = ::geteuid() == 0;
  bool good_ = false;
};

}  // namespace trireme

#endif  // TRIREME_TEST_SUPPORT_LOCKED_HPP_
