// Files and folders by POSIX calls that report errors truthfully and survive interruption by
// signals.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme {

// Advice on a path at which nothing is: the folder where it was looked for, or the first folder of
// the path that is not there.
std::string AdviceOnMissing(const std::string& path);

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
  // Opens a file; if that fails, the descriptor is invalid and errno is set. The user's umask
  // decides the permissions of a new file.
  Descriptor(const std::string& path, int flags);
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  bool Valid() const { return number_ >= 0; }
  int Get() const { return number_; }
  // Returns 0 or an errno: a network file system may report a full disk only now. Even after EINTR
  // the descriptor is gone, so the call is not repeated.
  int Close();

 private:
  int number_;
};

// Flushes a file, or the entries of a folder, to the disk. Returns 0 or an errno.
int SyncToDisk(const std::string& path);

// Creates a folder and its missing parents, and syncs the entry of each in its parent. Returns 0 or
// an errno; ENOTDIR if something else has that name.
int MakeFolderDurably(const std::string& folder);

// A type of file system. number: as in statfs(2).
struct FileSystemType {
  std::uint64_t number;
  const char* name;
  bool shared;  // by many hosts
  bool memory;  // its files occupy the node's memory
};
// Converts statfs' f_type, which is signed on some systems.
std::uint64_t FileSystemNumber(std::int64_t type);
// The type with this number; null if it is not known.
const FileSystemType* FindFileSystem(std::uint64_t number);
std::string NameOfFileSystem(std::uint64_t number);  // "nfs"; "type 0x1234" for another

inline constexpr std::uint64_t kNfsNumber = 0x6969, kLustreNumber = 0x0BD00BD0;

std::string Mebibytes(std::int64_t bytes);  // "12.3 MiB"

// Reads a whole file. Throws InputError with path and reason, also if it exceeds `most` bytes.
std::string ReadText(const std::string& path, std::int64_t most);

// Throws InputError for what is often found in place of a model's or a tokenizer's file: a pointer
// of Git LFS, a web page, a model in GGUF, a zip archive. Anything else passes, even a missing
// file: the code that reads it will judge.
void RefuseForeignFile(const std::string& path);

// Creates a file, which must not exist yet, with this text and syncs it. On failure it throws
// RunError with path and reason, and leaves nothing there.
void WriteTextDurably(const std::string& path, const std::string& text,
                      const std::string& hint = {});

// Returns 0 if this process may read the file, otherwise an errno.
int MayRead(const std::string& path);

// Flushes a file, or the entries of a folder, to the disk. Throws RunError.
void SyncPath(const std::string& path);

// Reserves `bytes` bytes of disk space for `path`, which it creates unless it `exists`. If the file
// system cannot reserve, the file only gets its length, and `held` becomes false. Returns 0 or an
// errno.
int Reserve(const std::string& path, std::int64_t bytes, bool& held, bool exists = false);

// Bytes that this user may still write to the file system of `folder`, ignoring quotas; -1:
// unknown.
std::int64_t FreeBytes(const std::string& folder);

// rename(2). Throws RunError with both names.
void Rename(const std::string& from, const std::string& to);
// Renames a file or folder whose contents are on the disk already, and syncs the folder of the new
// name, so that the new name is on the disk, too. Throws RunError as Rename does.
void RenameDurably(const std::string& from, const std::string& to);

std::string FolderOf(const std::string& path);  // the folder of a path; "." for a bare name

// Makes the symbolic link `link` point to `target`; replaces an older link in one atomic step.
void MoveLink(const std::string& target, const std::string& link);

// Creates an empty file for reading and writing; returns its descriptor, which is closed on exec.
// As others can guess the name, a file or link that has it is removed first and never followed
// (O_EXCL, O_NOFOLLOW). On failure returns -1 with errno set: EISDIR if a folder has the name.
int CreateNewFile(const std::string& path);

// Writes all of `text`, also through short writes and interruptions. False, with errno set, on
// failure.
bool WriteAll(int file, std::string_view text);

// The file that an output to `path` replaces: if `path` is a link, the file that it leads to, which
// need not exist; otherwise `path` itself.
std::string BehindLink(const std::string& path);

// PATH.tmp, the temporary name of a file or folder until it is complete. If the name would become
// too long, its end is cut.
std::string DraftName(const std::string& path);

// A random name beside `path`, of at most 30 bytes, that no file has and no other process picks.
std::string NewNameBeside(const std::string& path);

// A new file that is written under a temporary name and then renamed to `path`, replacing what is
// there. Keeps the first failure, after which nothing more is done.
class Replacement {
 public:
  // temporary: DraftName(path), or another name beside it.
  Replacement(std::string path, std::string temporary);
  // For a file whose name the user chose: writes under NewNameBeside and, if `path` is a link,
  // replaces the file that it leads to.
  explicit Replacement(const std::string& path);
  // Removes the temporary file unless it was placed.
  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void Write(std::string_view text);
  enum class Name { kMayBeLost, kDurable };
  // Syncs the file and renames it. After a crash of the machine, either the old or the new file is
  // there, whole; with kDurable, the new one. Returns the first failure, or no error.
  std::error_code Place(Name name = Name::kMayBeLost);

 private:
  void Note(bool good);

  std::string path_, temporary_;
  Descriptor file_;
  std::error_code error_;
};

// Reads up to `bytes` bytes from `offset` on, also through short reads and interruptions. Returns
// the number read: fewer with errno 0 at the end of the file, fewer with errno set if a read fails.
std::int64_t ReadAt(int file, void* to, std::int64_t bytes, std::int64_t offset);
// Writes all bytes at `offset`. Returns the number written: fewer, with errno set, on failure.
std::int64_t WriteAt(int file, const void* from, std::int64_t bytes, std::int64_t offset);

// Reads and writes of one process at offsets of a file. Uses no MPI, so a thread may use it while
// the rank trains.
class PositionedFile {
 public:
  enum class Access { kRead, kWrite };

  // Opens an existing file; kWrite allows reading as well. Errors have the exit code `blame` and
  // name the path, the offset and the system's reason.
  explicit PositionedFile(const std::string& path, Access access = Access::kRead,
                          ExitCode blame = ExitCode::kBadInput);

  const std::string& Path() const { return path_; }
  std::int64_t Size() const;  // bytes

  // Transfer all `bytes` bytes, also through short transfers and interruptions.
  void Write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  void Read(void* data, std::int64_t bytes, std::int64_t offset) const;

  // Asks the system to begin moving these written bytes to the disk, without waiting. A system that
  // does not do so moves them at the next flush.
  void StartFlush(std::int64_t bytes, std::int64_t offset) const;
  // Flushes what was written to the disk. data_only: except for facts about the file that reading
  // does not need, such as its date.
  void Sync(bool data_only = false) const;
  // Asks the system to drop its cached copies of these synced bytes, widened to whole pages, so
  // that the next read comes from the disk or the server. A system that does not do so serves the
  // read from memory.
  void ForgetCopies(std::int64_t bytes, std::int64_t offset) const;
  void Close();

 private:
  Error Complain(const std::string& what, int error) const;

  std::string path_;
  ExitCode blame_;
  Descriptor file_;
};

// The words of a text, between blanks and newlines.
std::vector<std::string> WordsIn(const std::string& text);

// The first line of a file, or what comes before `end`; empty if it cannot be read.
std::string FirstLine(const std::string& path, char end = '\n');

// Names of the entries of a folder, sorted; as many as can be listed.
std::vector<std::string> NamesIn(const std::string& folder);

}  // namespace trireme
