// A full disk for tests, by way of a limit on the size of files.
#ifndef TRIREME_TEST_SUPPORT_FULL_DISK_HPP_
#define TRIREME_TEST_SUPPORT_FULL_DISK_HPP_

#include <sys/resource.h>

#include <csignal>

namespace trireme::test {

// While it lives, no file of the process grows beyond `bytes`: EFBIG takes the place of ENOSPC.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_FULL_DISK_HPP_
