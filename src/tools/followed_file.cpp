// FollowedFile: a look at the file's name, its size and its last known bytes, then the bytes that
// are new.
#include "followed_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme::tools {

namespace {

constexpr std::size_t kKnownBytes = 256;  // tell a file from one rewritten in its place

ssize_t ReadAt(int file, char* to, std::size_t bytes, std::int64_t offset) {
  return Retry([&] { return pread(file, to, bytes, offset); });
}

}  // namespace

FollowedFile::State FollowedFile::Fail(int error) {
  file_.reset();
  if (error == ENOENT || error == ENOTDIR) return State::kMissing;
  reason_ = ErrorText(error);
  // A network file system that lost the file behind this descriptor knows the name again.
  return error == ESTALE ? State::kMissing : State::kUnreadable;
}

void FollowedFile::BeginAnew(const Visit& visit) {
  const bool anything = offset_ > 0;
  offset_ = 0;
  last_bytes_.clear();
  begun_.clear();
  begun_is_long_ = false;
  if (anything) visit.restart();
}

// Whether the bytes before offset_ are those that were read.
bool FollowedFile::Continues() const {
  std::string now(last_bytes_.size(), '\0');
  const auto from = offset_ - static_cast<std::int64_t>(now.size());
  const ssize_t got = ReadAt(file_->Get(), now.data(), now.size(), from);
  return got == static_cast<ssize_t>(now.size()) && now == last_bytes_;
}

// Opens what has the file's name now; false with errno set if that fails.
bool FollowedFile::Open(const Visit& visit) {
  struct stat found {};
  if (stat(path_.c_str(), &found) != 0) return false;
  if (file_ && found.st_dev == device_ && found.st_ino == inode_) {
    size_ = found.st_size;
    modified_ = found.st_mtime;
    return true;
  }
  if (!S_ISREG(found.st_mode)) {
    errno = S_ISDIR(found.st_mode) ? EISDIR : EINVAL;
    return false;
  }
  Descriptor file(path_, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (!file.Valid() || fstat(file.Get(), &found) != 0) return false;
  const bool same = found.st_dev == device_ && found.st_ino == inode_;
  file_.emplace(std::move(file));
  device_ = found.st_dev;
  inode_ = found.st_ino;
  size_ = found.st_size;
  modified_ = found.st_mtime;
  if (!same) BeginAnew(visit);
  return true;
}

void FollowedFile::Take(std::string_view bytes, const Visit& visit) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    const bool too_long = std::ssize(begun_) + std::ssize(piece) > kMaxLine;
    if (end == std::string_view::npos) {
      begun_is_long_ = begun_is_long_ || too_long;
      if (begun_is_long_) {
        begun_.clear();
      } else {
        begun_ += piece;
      }
      return;
    }
    if (begun_is_long_ || too_long) {
      visit.line({});
    } else if (begun_.empty()) {
      visit.line(piece);
    } else {
      begun_ += piece;
      visit.line(begun_);
    }
    begun_.clear();
    begun_is_long_ = false;
    bytes.remove_prefix(end + 1);
  }
}

FollowedFile::State FollowedFile::Read(const Visit& visit) {
  if (!Open(visit)) return Fail(errno);
  if (size_ < offset_ || !Continues()) BeginAnew(visit);
  if (size_ == offset_) return State::kCaughtUp;
  buffer_.resize(static_cast<std::size_t>(std::min(size_ - offset_, kReadBytes)));
  const ssize_t got = ReadAt(file_->Get(), buffer_.data(), buffer_.size(), offset_);
  if (got < 0) return Fail(errno);
  const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(got));
  offset_ += got;
  last_bytes_ += bytes.substr(bytes.size() - std::min(bytes.size(), kKnownBytes));
  if (last_bytes_.size() > kKnownBytes) last_bytes_.erase(0, last_bytes_.size() - kKnownBytes);
  Take(bytes, visit);
  return got > 0 && offset_ < size_ ? State::kBehind : State::kCaughtUp;
}

double FollowedFile::Fraction() const {
  return size_ > 0 ? static_cast<double>(offset_) / static_cast<double>(size_) : 1;
}

}  // namespace trireme::tools
