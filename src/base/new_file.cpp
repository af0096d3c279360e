// Exclusive creation of files, and their replacement in one move.
#include "trireme/base/new_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <utility>

namespace trireme {

int CreateNewFile(const std::string& path) {
  constexpr mode_t kMode = 0666;  // the user's umask decides
  constexpr int kTries = 8;       // another process may plant the name again in between
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int file = -1;
  for (int i = 0; i < kTries; ++i) {
    file = ::open(path.c_str(), kFlags, kMode);
    if (file >= 0 || errno != EEXIST) break;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) break;
  }
  return file;
}

std::string BehindLink(const std::string& path) {
  constexpr int kMostLinks = 40;  // the system's own limit
  std::error_code error;
  std::filesystem::path found = path;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(found, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(found, error);
    if (error) return path;
    found = target.is_absolute() ? target : found.parent_path() / target;
  }
  return found.string();
}

std::string DraftName(const std::string& path) {
  constexpr std::size_t kLongest = 255;  // bytes of a name: NAME_MAX
  constexpr std::string_view kEnding = ".tmp";
  const std::size_t name = path.find_last_of('/') + 1;  // 0 if there is none
  return path.substr(0, std::max(name, std::min(path.size(), name + kLongest - kEnding.size()))) +
         std::string(kEnding);
}

std::string NewNameBeside(const std::string& path) {
  std::random_device random;
  const std::uint64_t number = (std::uint64_t{random()} << 32) | random();
  return (std::filesystem::path(path).parent_path() / fmt::format(".trireme.{:016x}", number))
      .string();
}

bool WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    if (written == 0) {
      errno = ENOSPC;
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

Replacement::Replacement(std::string path, std::string temporary)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(CreateNewFile(temporary_)) {
  Note(file_ >= 0);
}

Replacement::Replacement(const std::string& path)
    : Replacement(BehindLink(path), NewNameBeside(BehindLink(path))) {}

Replacement::~Replacement() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void Replacement::Note(bool good) {
  if (!good && !error_) error_ = {errno, std::generic_category()};
}

void Replacement::Write(std::string_view text) {
  if (!error_) Note(WriteAll(file_, text));
}

std::error_code Replacement::Place() {
  if (!error_) Note(::fsync(file_) == 0);
  if (file_ < 0) return error_;
  // A network file system may report a failed write only now.
  Note(::close(std::exchange(file_, -1)) == 0);
  if (!error_) Note(std::rename(temporary_.c_str(), path_.c_str()) == 0);
  if (error_) ::unlink(temporary_.c_str());
  return error_;
}

}  // namespace trireme
