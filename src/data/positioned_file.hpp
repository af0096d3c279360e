// A token file read at positions, past HDF5: its arrays lie in one piece each.
#ifndef TRIREME_SRC_DATA_POSITIONED_FILE_HPP_
#define TRIREME_SRC_DATA_POSITIONED_FILE_HPP_

#include <cstdint>
#include <string>

#include "token_layout.hpp"
#include "trireme/base/descriptor.hpp"

namespace trireme::data {

// Throws InputError for a file that cannot be asked.
FileState StateOf(const std::string& path);

class PositionedFile {
 public:
  // Throws RunError if the file cannot be opened, and as RequireUnchanged does. state: of the file
  // when it was inspected.
  PositionedFile(std::string path, const FileState& state);

  // Copies elements [begin, end) of an array to `to`, in this machine's order of bytes. Throws
  // RunError for a read that fails and for a file that has shrunk.
  void Read(const TokenLayout& layout, Split split, Array array, std::int64_t begin,
            std::int64_t end, void* to) const;
  // Throws RunError if the file is not the one that was inspected, or was written to since.
  void RequireUnchanged() const;

 private:
  std::string path_;
  Descriptor file_;
  FileState state_;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_POSITIONED_FILE_HPP_
