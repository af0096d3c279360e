// Small files, folders and disk space through POSIX calls that report errors truthfully and survive
// interruption by signals.
#ifndef TRIREME_BASE_POSIX_FILE_HPP_
#define TRIREME_BASE_POSIX_FILE_HPP_

#include <cstdint>
#include <string>

namespace trireme {

std::string Mebibytes(std::int64_t bytes);  // "12.3 MiB"

// The whole file, of at most `most` bytes. Throws InputError with path and reason.
std::string ReadText(const std::string& path, std::int64_t most);

// Throws InputError if the file is what downloads leave in the place of a model's or a tokenizer's:
// a pointer of Git LFS, a web page; or a model in GGUF, a zip archive. Whatever else it is, or is
// not, is told by who reads it.
void RefuseForeignFile(const std::string& path);

// Creates the file, which must not exist, and syncs it. Throws RunError with path and reason.
void WriteTextDurably(const std::string& path, const std::string& text);

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

// Lets the symbolic link `link` point to `target`, replacing an older link in one atomic step.
void MoveLink(const std::string& target, const std::string& link);

}  // namespace trireme

#endif  // TRIREME_BASE_POSIX_FILE_HPP_
