// Positioned reads of a token file, and the watch over changes to it.
#include "positioned_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr const char* kLeaveAlone = "A token file must stay as it is while a job reads it.";

FileState StateOf(const struct stat& status) {
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return {status.st_size, status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

template <typename T>
void SwapElements(std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + sizeof(T)));
  }
}

}  // namespace

FileState StateOf(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    throw InputError(fmt::format("{}: its size is unknown: {}", path, ErrorText(errno)));
  }
  return StateOf(status);
}

PositionedFile::PositionedFile(std::string path, const FileState& state)
    : path_(std::move(path)), file_(path_, O_RDONLY | O_CLOEXEC), state_(state) {
  if (!file_.Valid()) {
    throw RunError(fmt::format("{}: cannot be opened: {}", path_, ErrorText(errno)));
  }
  RequireUnchanged();
}

void PositionedFile::Read(const TokenLayout& layout, Split split, Array array, std::int64_t begin,
                          std::int64_t end, void* to) const {
  const StoredArray& stored = layout.Of(split, array);
  const std::span<std::byte> room(static_cast<std::byte*>(to),
                                  static_cast<std::size_t>((end - begin) * stored.width));
  const std::int64_t from = stored.offset + begin * stored.width;
  for (std::size_t done = 0; done < room.size();) {
    const ssize_t got = Retry([&] {
      return ::pread(file_.Get(), room.data() + done, room.size() - done,
                     from + static_cast<std::int64_t>(done));
    });
    if (got < 0) {
      throw RunError(fmt::format("{}: {}: cannot be read at offset {}: {}", path_,
                                 PathOf(split, array), begin, ErrorText(errno)));
    }
    if (got == 0) {
      throw RunError(fmt::format("{}: {}: the file ends before offset {}: it has shrunk since this "
                                 "job opened it",
                                 path_, PathOf(split, array),
                                 begin + static_cast<std::int64_t>(done) / stored.width),
                     kLeaveAlone);
    }
    done += static_cast<std::size_t>(got);
  }
  if (!stored.big_endian) return;
  if (stored.width == 2) SwapElements<std::uint16_t>(room);
  if (stored.width == 4) SwapElements<std::uint32_t>(room);
  if (stored.width == 8) SwapElements<std::uint64_t>(room);
}

void PositionedFile::RequireUnchanged() const {
  struct stat status = {};
  if (::fstat(file_.Get(), &status) != 0) {
    throw RunError(fmt::format("{}: its size is unknown: {}", path_, ErrorText(errno)));
  }
  const FileState now = StateOf(status);
  if (now == state_) return;
  throw RunError(
      now.bytes == state_.bytes
          ? path_ + ": the file was written to since this job opened it"
          : fmt::format("{}: the file had {} bytes when this job opened it, and has {} now", path_,
                        state_.bytes, now.bytes),
      kLeaveAlone);
}

}  // namespace trireme::data
