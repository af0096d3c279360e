// Checks of the place of a token file, and the temporary file beside it.
#include "token_file_draft.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/new_file.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

namespace fs = std::filesystem;

namespace {

std::string SystemText(int error) { return std::generic_category().message(error); }

constexpr const char* kTokenFileKey = "data.file";

Error CannotCreate(const std::string& path, const std::string& reason, const std::string& key) {
  return InputError(fmt::format("{}: cannot be created: {}", path, reason),
                    fmt::format("Let {} name a place where you may write.", key));
}

Error InTheWay(const std::string& path, const std::string& key) {
  return InputError(path + ": this file is in the way, and is no unfinished file of ours",
                    fmt::format("Move it away, or let {} name another.", key));
}

Error NoSpace(const std::string& what, int error, const std::string& key) {
  return RunError(fmt::format("{}: {}", what, SystemText(error)),
                  fmt::format("Free some space, or let {} name another disk.", key));
}

std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void SyncPath(const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC);
  const int error = file < 0 || ::fsync(file) != 0 ? errno : 0;
  if (file >= 0) ::close(file);
  // EINVAL: a folder on a file system that syncs none.
  if (error != 0 && error != EINVAL) {
    throw RunError(fmt::format("{}: cannot be synced: {}", path, SystemText(error)));
  }
}

// Whether nothing is lost with what lies there: nothing, a link, or what a job left that ended
// without warning, which HDF5 has begun or which is reserved alone.
bool IsDraft(const std::string& path) {
  constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1a\n";
  constexpr std::string_view kReserved("\0\0\0\0\0\0\0\0", kHdf5.size());
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(path, ignored);
  if (!fs::is_regular_file(status)) return true;
  std::array<char, kHdf5.size()> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), begin.size());
  const std::string_view found(begin.data(), static_cast<std::size_t>(file.gcount()));
  return found.empty() || found == kHdf5 || found == kReserved;
}

}  // namespace

std::string DraftOf(const std::string& target) { return DraftName(BehindLink(target)); }

void CheckTokenFileTarget(const std::string& path, bool overwrite) {
  if (path.empty()) throw InputError("data.file is empty: it must name the token file to write");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::status_known(status)) throw CannotCreate(path, error.message(), kTokenFileKey);
  if (fs::is_directory(status)) {
    throw InputError(path + ": this is a folder; data.file names a file");
  }
  if (fs::exists(status) && !overwrite) {
    throw InputError(path + ": this file exists already",
                     "tokenize.overwrite = yes replaces it; data.file names another.");
  }
  const std::string target = BehindLink(path);
  if (!IsDraft(DraftName(target))) throw InTheWay(DraftName(target), kTokenFileKey);
  const std::string folder = FolderOf(target);
  const fs::file_status place = fs::status(folder, error);
  if (!fs::is_directory(place)) {
    throw InputError(fmt::format("{}: the folder {} {}", path, folder,
                                 fs::exists(place) ? "is a file" : "does not exist"),
                     "Make it, or let data.file name another place.");
  }
  // By the effective user, as open(2) judges.
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw CannotCreate(path, SystemText(errno), kTokenFileKey);
  }
}

TokenFileDraft::TokenFileDraft(const std::string& target, std::string key)
    : target_(BehindLink(target)), path_(DraftName(target_)), key_(std::move(key)) {
  if (!IsDraft(path_)) throw InTheWay(path_, key_);
  const int file = CreateNewFile(path_);
  if (file >= 0) {
    ::close(file);
    return;
  }
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT)
    throw NoSpace(target + ": cannot be created", error, key_);
  throw CannotCreate(target, SystemText(error), key_);
}

TokenFileDraft::~TokenFileDraft() {
  std::error_code ignored;
  if (!placed_) fs::remove(path_, ignored);
}

void TokenFileDraft::Reserve(std::size_t bytes, bool keep_length) const {
  const int file = ::open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) {
    throw RunError(fmt::format("{}: cannot be opened: {}", path_, SystemText(errno)));
  }
  const int mode = keep_length ? FALLOC_FL_KEEP_SIZE : 0;
  const int error = ::fallocate(file, mode, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  ::close(file);
  // Without a file system that can reserve, the read-back judges.
  if (error == 0 || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) return;
  throw NoSpace(fmt::format("{}: cannot reserve {} bytes", path_, bytes), error, key_);
}

void TokenFileDraft::Sync() const { SyncPath(path_, O_RDWR | O_NOFOLLOW); }

void TokenFileDraft::Place() {
  if (::rename(path_.c_str(), target_.c_str()) != 0) {
    throw RunError(
        fmt::format("{}: cannot be renamed to {}: {}", path_, target_, SystemText(errno)));
  }
  placed_ = true;
  SyncPath(FolderOf(target_), O_RDONLY);
}

}  // namespace trireme::data
