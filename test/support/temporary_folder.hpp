// Folders for tests, removed after them.
#ifndef TRIREME_TEST_SUPPORT_TEMPORARY_FOLDER_HPP_
#define TRIREME_TEST_SUPPORT_TEMPORARY_FOLDER_HPP_

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::test {

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

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_TEMPORARY_FOLDER_HPP_
