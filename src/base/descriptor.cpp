// Opening, closing and flushing of files and folders.
#include "trireme/base/descriptor.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace trireme {

std::string ErrorText(int error) { return std::generic_category().message(error); }

Descriptor::Descriptor(const std::string& path, int flags) : number_(-1) {
  constexpr mode_t kMode = 0666;  // the user's umask decides
  number_ = Retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, kMode); });
}

int Descriptor::Close() {
  if (number_ < 0) return 0;
  const int result = ::close(std::exchange(number_, -1));
  return result == 0 || errno == EINTR ? 0 : errno;
}

int SyncToDisk(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  if (!file.Valid()) return errno;
  // EINVAL: this file system has nothing to sync for such an object (folders on some network
  // mounts).
  return Retry([&] { return ::fsync(file.Get()); }) == 0 || errno == EINVAL ? 0 : errno;
}

int MakeFolderDurably(const std::string& folder) {
  namespace fs = std::filesystem;
  fs::path missing = fs::absolute(folder).lexically_normal();
  if (!missing.has_filename()) missing = missing.parent_path();  // "a/b/"
  std::vector<fs::path> made;
  std::error_code error;
  for (; !fs::exists(missing, error) && !error; missing = missing.parent_path()) {
    made.push_back(missing);
  }
  fs::create_directories(folder, error);
  if (error) return error.value();
  if (!fs::is_directory(folder, error)) return ENOTDIR;
  for (const fs::path& each : made) {
    if (const int failed = SyncToDisk(each.parent_path().string()); failed != 0) return failed;
  }
  return 0;
}

}  // namespace trireme
