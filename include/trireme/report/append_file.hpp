// A file that only grows by whole pieces: log.txt, metrics.jsonl, event files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/base/files.hpp"

namespace trireme::report {

// Writes `text` to `path` by way of a temporary name beside it, synced. RunError names the path.
void WriteWhole(const std::string& path, std::string_view text);

// Moves `file` to `path`. RunError names the path.
void Place(Replacement& file, const std::string& path);

class AppendFile {
 public:
  // Opens for appending, emptied first when `truncate`. A link to a file is followed. Throws
  // RunError naming the path, also for a link that leads nowhere and a pipe without a reader.
  AppendFile(const std::string& path, bool truncate);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Appends all of `text`, or nothing: what a full disk let through is cut off again. Returns "" or
  // the system's reason.
  std::string Append(std::string_view text);
  // Whether its path leads to no file any more, or to another one: it was deleted, moved or
  // replaced.
  bool Gone() const;
  // Flushes what was appended to the disk, where the file is on one. Any thread.
  void Sync() const;
  const std::string& Path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;          // file descriptor
  std::int64_t size_ = 0;  // bytes of whole pieces
};

}  // namespace trireme::report
