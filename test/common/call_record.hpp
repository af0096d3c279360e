// Record of the system calls that change one folder, made by functions of the C library's names in
// the test's executable, which forward to the real ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::test {

// A successful call. Paths are relative to the recorded folder; "" is the folder itself.
struct Call {
  enum class Kind {
    kCreate,  // an empty file
    kMakeFolder,
    kSymlink,  // other: the text of the link
    kLink,     // other: the file that gets another name
    kRename,   // other: the new name
    kRemove,   // of a file, a link or an empty folder
    kWrite,    // data at offset
    kResize,   // to `offset` bytes
    kSync,     // of a file's data and size, or of a folder's entries
  };
  Kind kind = Kind::kSync;
  std::string path, other;
  std::int64_t offset = 0;
  std::string data;
};

const char* NameOf(Call::Kind kind);

// Records the calls of all threads on objects within `folder` from construction on. One at a time.
// Calls through memory maps, asynchronous I/O and C streams are not seen: compare the folder with
// the model of the calls.
class CallRecord {
 public:
  // folder: an existing folder, by its canonical path.
  explicit CallRecord(const std::string& folder);
  ~CallRecord();
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;

  std::vector<Call> Stop();  // ends the record and returns it
};

}  // namespace trireme::test
