// Open files of the operating system, and what the disk must know of them.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme {

// Repeats a system call that a signal interrupted.
template <typename Call>
auto Retry(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

std::string ErrorText(int error);  // of an errno value: "No space left on device"

// An open file, folder or pipe; closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  // Opens a file; invalid with errno set if that fails. A new one has the user's umask.
  Descriptor(const std::string& path, int flags);
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  bool Valid() const { return number_ >= 0; }
  int Get() const { return number_; }
  // Returns 0 or an errno: a network file system may report a full disk only now. After EINTR the
  // descriptor is gone all the same, so the call is not repeated.
  int Close();

 private:
  int number_;
};

// Flushes a file, or the entries of a folder, to the disk. Returns 0 or an errno.
int SyncToDisk(const std::string& path);

// Makes the folder and those above it that are missing, each durable in the folder above it.
// Returns 0 or an errno; ENOTDIR if something else has that name.
int MakeFolderDurably(const std::string& folder);

// Types of file systems, as statfs(2) numbers them.

struct FileSystemType {
  std::uint64_t number;
  const char* name;
  bool shared;  // by many hosts
  bool memory;  // what lies there takes the node's memory
};
// statfs' f_type, which is signed on some systems.
std::uint64_t FileSystemNumber(std::int64_t type);
// Null for a type that is not known.
const FileSystemType* FindFileSystem(std::uint64_t number);
std::string NameOfFileSystem(std::uint64_t number);  // "nfs"; "type 0x1234" for another

inline constexpr std::uint64_t kNfsNumber = 0x6969, kLustreNumber = 0x0BD00BD0;

// Small files, folders and disk space through POSIX calls that report errors truthfully and survive
// interruption by signals.

std::string Mebibytes(std::int64_t bytes);  // "12.3 MiB"

// The whole file, of at most `most` bytes. Throws InputError with path and reason.
std::string ReadText(const std::string& path, std::int64_t most);

// Throws InputError if the file is what downloads leave in the place of a model's or a tokenizer's:
// a pointer of Git LFS, a web page; or a model in GGUF, a zip archive. Whatever else it is, or is
// not, is told by who reads it.
void RefuseForeignFile(const std::string& path);

// Creates the file, which must not exist, and syncs it. Throws RunError with path and reason, and
// leaves nothing there.
void WriteTextDurably(const std::string& path, const std::string& text,
                      const std::string& hint = {});

// 0 if this process may read the file, else an errno.
int MayRead(const std::string& path);

// Flushes a file, or the entries of a folder, to the disk. Throws RunError.
void SyncPath(const std::string& path);

// Gives `path` `bytes` bytes of real disk space; creates it, unless it `exists`. On a file system
// that cannot reserve, the file only gets its length, and `held` becomes false. Returns 0 or the
// errno of the failure.
int Reserve(const std::string& path, std::int64_t bytes, bool& held, bool exists = false);

// Bytes that this user may still write to the file system of `folder`, quotas aside; -1 when
// unknown.
std::int64_t FreeBytes(const std::string& folder);

// rename(2). Throws RunError with both names.
void Rename(const std::string& from, const std::string& to);
// Renames a file or folder whose contents are on the disk already, and flushes the new name's
// folder: on return the new name is on the disk, too. Throws RunError as Rename.
void RenameDurably(const std::string& from, const std::string& to);

std::string FolderOf(const std::string& path);  // that a path lies in; "." for a bare name

// Lets the symbolic link `link` point to `target`, replacing an older link in one atomic step.
void MoveLink(const std::string& target, const std::string& link);

// Files made anew under names that others can guess: a link or a leftover of that name is removed,
// never followed or reused.

// Makes an empty file for reading and writing and returns its descriptor, closed on exec. A file or
// link of that name, whole or dangling, is removed first, and its target left alone (O_EXCL,
// O_NOFOLLOW). -1 with errno set: EISDIR for a folder of that name.
int CreateNewFile(const std::string& path);

// Writes all of `text`, through short writes and interruptions. False with errno set.
bool WriteAll(int file, std::string_view text);

// What an output of the user's own name replaces: behind a link the file that it leads to, which
// need not be there yet; any other path as it is.
std::string BehindLink(const std::string& path);

// PATH.tmp, the file or folder that becomes `path` when it is whole; of a name that would become
// too long so, the end is cut.
std::string DraftName(const std::string& path);

// A random name beside `path`, of 30 bytes at most: no other process takes it, and no file has it.
std::string NewNameBeside(const std::string& path);

// A new file written under a temporary name and moved to `path` as a whole, over what lies there.
// The first failure is kept, and nothing is done after it.
class Replacement {
 public:
  // temporary: DraftName(path), or another name beside it.
  Replacement(std::string path, std::string temporary);
  // Replaces a file whose name the user chose: the draft is written under NewNameBeside, behind a
  // link.
  explicit Replacement(const std::string& path);
  // Removes the temporary file unless it was placed.
  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void Write(std::string_view text);
  enum class Name { kMayBeLost, kDurable };
  // Syncs the file and renames it. After a crash of the machine one of both files is there whole; a
  // durable name makes that the new one. Returns the first failure of all, or no error.
  std::error_code Place(Name name = Name::kMayBeLost);

 private:
  void Note(bool good);

  std::string path_, temporary_;
  int file_ = -1;
  std::error_code error_;
};

// Reads up to `bytes` bytes from `offset` on, through short reads and interruptions. Returns how
// many there are: fewer with errno 0 where the file ends, or with errno set for a read that fails.
std::int64_t ReadAt(int file, void* to, std::int64_t bytes, std::int64_t offset);
// Writes all bytes at `offset`. Returns how many were written: fewer with errno set.
std::int64_t WriteAt(int file, const void* from, std::int64_t bytes, std::int64_t offset);

// PositionedFile: reads and writes of one process at explicit offsets of a file. No MPI: a thread
// may use it while the rank trains on.

class PositionedFile {
 public:
  enum class Access { kRead, kWrite };

  // Opens the existing file `path`; kWrite reads as well. All errors carry `blame`, the path, the
  // offset and the system's reason.
  PositionedFile(const std::string& path, Access access, ExitCode blame);

  const std::string& Path() const { return path_; }
  std::int64_t Size() const;  // bytes

  // All `bytes` bytes, through short transfers and interruptions.
  void Write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  void Read(void* data, std::int64_t bytes, std::int64_t offset) const;

  // Asks the system to begin moving these written bytes to the disk, and does not wait for them. A
  // system that does not moves them at the next flush.
  void StartFlush(std::int64_t bytes, std::int64_t offset) const;
  // Flushes what was written to the disk.
  void Sync() const;
  // The same, but for facts about the file that reading it does not need, such as its date.
  void SyncData() const;
  // Asks the system to forget its copies of synced bytes, so that the next read comes from the disk
  // or the server. A system that does not serves them from memory.
  void ForgetCopies() const;
  // Does the same for a part of the file, widened to whole pages.
  void ForgetCopies(std::int64_t bytes, std::int64_t offset) const;
  void Close();

 private:
  Error Complain(const std::string& what, int error) const;

  std::string path_;
  ExitCode blame_;
  Descriptor file_;
};

}  // namespace trireme
