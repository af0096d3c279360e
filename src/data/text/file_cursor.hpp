// Writing to one place of a token file after the other, in large pieces.
#ifndef TRIREME_SRC_DATA_TEXT_FILE_CURSOR_HPP_
#define TRIREME_SRC_DATA_TEXT_FILE_CURSOR_HPP_

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "positioned_file.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

inline constexpr std::size_t kWriteBytes = std::size_t{1} << 20;  // at once

// A place in the file that moves on with what is written there.
class FileCursor {
 public:
  FileCursor(const std::string& path, int file, std::int64_t offset)
      : path_(path), file_(file), offset_(offset) {}
  FileCursor(FileCursor&&) = default;
  FileCursor(const FileCursor&) = delete;
  FileCursor& operator=(const FileCursor&) = delete;

  void Write(const void* bytes, std::size_t count) {
    const char* const begin = static_cast<const char*>(bytes);
    buffer_.insert(buffer_.end(), begin, begin + count);
    if (buffer_.size() >= kWriteBytes) Flush();
  }
  void Flush() {
    if (buffer_.empty()) return;  // to sync_file_range no bytes are all bytes to the end
    const int error = WriteAt(file_, buffer_.data(), buffer_.size(), offset_);
    if (error != 0) {
      throw RunError(fmt::format("{}: cannot be written: {}", path_, ErrorText(error)),
                     error == ENOSPC || error == EDQUOT
                         ? "Free some space, or let data.file name another disk."
                         : "");
    }
    // The disk begins now, not when all is written.
    ::sync_file_range(file_, offset_, static_cast<off64_t>(buffer_.size()), SYNC_FILE_RANGE_WRITE);
    offset_ += static_cast<std::int64_t>(buffer_.size());
    buffer_.clear();
  }

 private:
  const std::string& path_;
  int file_;
  std::int64_t offset_;
  std::vector<char> buffer_;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_FILE_CURSOR_HPP_
