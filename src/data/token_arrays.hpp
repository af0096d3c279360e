// A token file read at positions, past HDF5: its arrays lie in one piece each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "token_layout.hpp"
#include "trireme/base/files.hpp"

namespace trireme::data {

// SHA-256 of texts, to tell which source a token file came from.

// SHA-256 of the texts one after the other, 64 hex digits.
std::string Sha256(std::span<const std::string_view> texts);

struct Elements;

// Size and date of a file, by which a change under the reader's hands is seen.
struct FileState {
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds, the file system's clock
  friend bool operator==(const FileState&, const FileState&) = default;
};

// Notes size and sample of a file whose arrays are known, open as `file`. Throws InputError if it
// cannot be read.
void TakeSample(const std::string& path, int file, TokenLayout& layout);

// The open file, its arrays read at positions.
class TokenArrays {
 public:
  // Opens the file that was inspected as `layout`, or a copy of it on another node, whatever its
  // date. Throws InputError if it cannot be opened or is another one: by its size, or by parts of
  // its arrays.
  TokenArrays(std::string path, const TokenLayout& layout);
  // Takes an open copy, which nobody writes to any more. path: its name in messages.
  TokenArrays(std::string path, Descriptor copy);

  const std::string& Path() const { return path_; }
  // Copies elements [begin, end) of an array to `to`, in this machine's order of bytes. Throws
  // RunError for a read that fails and for a file that has shrunk.
  void Read(const TokenLayout& layout, Split split, Array array, std::int64_t begin,
            std::int64_t end, void* to) const;
  // Asks the system to read elements [begin, end) ahead of a later Read, if there are that many.
  void Prefetch(const TokenLayout& layout, Split split, Array array, std::int64_t begin,
                std::int64_t end) const;
  // Throws RunError for the first bad element; but a file that was written to is said to be so.
  void RequireGood(const TokenLayout& layout, Split split, Array array,
                   const Elements& elements) const;
  // Throws RunError if the file was written to since it was opened here.
  void RequireUnchanged() const;

 private:
  FileState StateNow() const;

  std::string path_;
  Descriptor file_;
  FileState state_;
};

}  // namespace trireme::data
