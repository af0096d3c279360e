// Reads a token file's arrays at byte offsets without HDF5, which works because each is contiguous.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"

namespace trireme::data {

// SHA-256 of the texts, concatenated, as 64 hex digits. It identifies the source of a token file.
std::string Sha256(const std::vector<std::string_view>& texts);

inline constexpr std::int64_t kNoElement = std::numeric_limits<std::int64_t>::max();

// Elements [begin, end) of an array, in this machine's order of bytes.
struct Elements {
  const void* values = nullptr;
  std::int64_t begin = 0, end = 0;
  std::uint64_t before = 0;  // value at begin - 1; for documents only
};

// Their values, of type T.
template <typename T>
std::span<const T> As(const Elements& elements) {
  return {static_cast<const T*>(elements.values),
          static_cast<std::size_t>(elements.end - elements.begin)};
}

// A bad element: its offset in the array (kNoElement: there is none), and the value that was read.
struct BadValue {
  std::int64_t offset = kNoElement;
  std::uint64_t value = 0;
};

// The first bad element. Bad are: an id that is not below the vocabulary size; a document that does
// not begin after the one before it (the first one: at 0), or begins beyond the tokens; a mask
// value other than 0 and 1.
BadValue FirstBad(const StoredArray& array, const Elements& elements);

// InputError that names file, dataset and offset.
Error BadElement(const std::string& path, const StoredArray& array, const BadValue& bad);

// Size and date of a file, to detect that it was modified while being read.
struct FileState {
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds, by the file system's clock
  friend bool operator==(const FileState&, const FileState&) = default;
};

// Sets layout.bytes and layout.sample of the file open as `file`, whose arrays are already in the
// layout. Throws InputError if it cannot be read.
void TakeSample(const std::string& path, int file, TokenLayout& layout);

// An open token file whose arrays are read at byte offsets.
class TokenArrays {
 public:
  // Opens the file that was inspected as `layout`, or another node's copy of it, of any date.
  // Throws InputError if it cannot be opened or differs in size or in samples of its arrays.
  TokenArrays(std::string path, const TokenLayout& layout);
  // Takes an open copy that nobody writes to any more. path: name for messages.
  TokenArrays(std::string path, Descriptor copy);

  const std::string& Path() const { return path_; }
  // Copies elements [begin, end) of an array to `to`, in this machine's byte order. Throws RunError
  // if a read fails or the file has shrunk.
  void Read(const StoredArray& array, std::int64_t begin, std::int64_t end, void* to) const;
  // The same, with what FirstBad needs to check them.
  Elements ReadElements(const StoredArray& array, std::int64_t begin, std::int64_t end,
                        void* to) const;
  // Asks the system to read elements [begin, end), clipped to the array, ahead of a later Read.
  void Prefetch(const StoredArray& array, std::int64_t begin, std::int64_t end) const;
  // Throws RunError for the first bad element, or for a modified file if that is the cause.
  void RequireGood(const StoredArray& array, const Elements& elements) const;
  // Throws RunError if the file was modified since it was opened here.
  void RequireUnchanged() const;

 private:
  FileState StateNow() const;

  std::string path_;
  Descriptor file_;
  FileState state_;
};

}  // namespace trireme::data
