// Folders and files for tests: temporary ones, locked ones, a disk that is full.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::test {

// Folders for tests, removed after them.

class TemporaryFolder {
 public:
  explicit TemporaryFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : path_((parent / "trireme_XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw RunError("mkdtemp failed: " + path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& Path() const { return path_; }

 private:
  std::string path_;
};

// One folder for all ranks, made by rank 0 and removed by it once all are done with it.
class SharedFolder {
 public:
  explicit SharedFolder(const comm::Communicator& world) : world_(world) {
    if (world.IsRoot()) own_ = std::make_unique<TemporaryFolder>();
    path_ = world.Broadcast(own_ ? own_->Path() : std::string());
  }
  ~SharedFolder() { world_.Barrier(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& Path() const { return path_; }

 private:
  const comm::Communicator& world_;
  std::unique_ptr<TemporaryFolder> own_;  // rank 0
  std::string path_;
};

// A temporary folder for each test, and small files read and written whole.

class FolderTest : public testing::Test {
 protected:
  std::string In(const std::string& name) const { return home_ / name; }

  const TemporaryFolder home_;
  const std::string& folder_ = home_.Path();
};

// Bytes of the file; empty if it cannot be read.
inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A full disk for tests, by way of a limit on the size of files.

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

namespace trireme {

// A file or folder that this process may not use for a while: for tests of what is said about it.

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
