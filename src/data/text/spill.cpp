// O_TMPFILE, or a file that loses its name at once where the file system has no such thing.
#include "spill.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "positioned_file.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr std::size_t kSpillBuffer = std::size_t{1} << 20;  // bytes
constexpr std::int64_t kBlock = 4096;                       // bytes; of most file systems

int OpenNameless(const std::string& folder) {
  constexpr mode_t kOwner = 0600;
  const int file =
      Retry([&] { return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwner); });
  if (file >= 0) return file;
  std::string name = folder + "/.trireme_tokens_XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

Spill::Spill(const std::string& folder) : folder_(folder), file_(OpenNameless(folder)) {
  if (!file_.Valid()) {
    throw RunError(
        fmt::format("{}: no temporary file can be made there: {}", folder, ErrorText(errno)));
  }
  buffer_.reserve(kSpillBuffer);
}

void Spill::Flush() {
  Put(size_ - static_cast<std::int64_t>(buffer_.size()), buffer_.data(), buffer_.size());
  buffer_.clear();
}

void Spill::Put(std::int64_t begin, const void* bytes, std::size_t count) {
  ahead_.clear();
  const int error = WriteAt(file_.Get(), bytes, count, begin);
  if (error != 0) {
    throw RunError(fmt::format("{}: a temporary file of tokens cannot be written: {}", folder_,
                               ErrorText(error)),
                   "Tokens may be kept there twice for a while: free some space, or let data.file "
                   "name another disk.");
  }
}

void Spill::Overwrite(std::int64_t begin, const void* bytes, std::size_t count) {
  if (!buffer_.empty()) Flush();
  Put(begin, bytes, count);
}

void Spill::Release(std::int64_t begin, std::int64_t end) {
  // Whole blocks alone: a part of one would be filled with zeros.
  begin = (begin + kBlock - 1) / kBlock * kBlock;
  end = end / kBlock * kBlock;
  if (begin >= end) return;
  ::fallocate(file_.Get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin);
}

void Spill::Append(const void* bytes, std::size_t count) {
  const char* const begin = static_cast<const char*>(bytes);
  buffer_.insert(buffer_.end(), begin, begin + count);
  size_ += static_cast<std::int64_t>(count);
  if (buffer_.size() >= kSpillBuffer) Flush();
}

void Spill::Read(std::int64_t begin, void* to, std::size_t count) {
  if (!buffer_.empty()) Flush();
  if (count >= kSpillBuffer) return Get(begin, static_cast<char*>(to), count);
  const std::int64_t end = begin + static_cast<std::int64_t>(count);
  if (begin < ahead_begin_ || end > ahead_begin_ + std::ssize(ahead_)) {
    // As far as the file goes, but for a range that it does not hold, whose reading fails.
    const std::int64_t most = std::min(size_ - begin, static_cast<std::int64_t>(kSpillBuffer));
    ahead_.resize(std::max(static_cast<std::size_t>(std::max<std::int64_t>(most, 0)), count));
    ahead_begin_ = begin;
    Get(begin, ahead_.data(), ahead_.size());
  }
  std::copy_n(ahead_.begin() + (begin - ahead_begin_), count, static_cast<char*>(to));
}

void Spill::Get(std::int64_t begin, char* at, std::size_t count) {
  while (count > 0) {
    const auto got = Retry([&] { return ::pread(file_.Get(), at, count, begin); });
    if (got <= 0) {
      throw RunError(fmt::format("{}: a temporary file of tokens cannot be read: {}", folder_,
                                 got == 0 ? "it is cut off" : ErrorText(errno)));
    }
    at += got;
    begin += got;
    count -= static_cast<std::size_t>(got);
  }
}

}  // namespace trireme::data
