// AppendFile: a file that grows by whole pieces (log.txt, metrics.jsonl, event files).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/base/files.hpp"

namespace trireme::report {

// Replaces `path` by a synced file with `text`, by way of a temporary name. Throws RunError.
void WriteWhole(const std::string& path, std::string_view text);

// Moves `file` to `path`. Throws RunError that names the path.
void Place(Replacement& file, const std::string& path);

class AppendFile {
 public:
  // Opens the file for appending; truncate: empties it first. A link to a file is followed. Throws
  // RunError that names the path, also for a dangling link and for a pipe without a reader.
  AppendFile(const std::string& path, bool truncate);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Appends all of `text`, or nothing. Returns "" or the system's error message.
  std::string Append(std::string_view text);
  // True if the file was deleted, moved or replaced: its path leads to no file or to another one.
  bool Gone() const;
  // Flushes to the disk what was appended, if the file is on a disk. Any thread may call it.
  void Sync() const;
  const std::string& Path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;          // file descriptor
  std::int64_t size_ = 0;  // bytes appended in whole pieces
};

}  // namespace trireme::report
