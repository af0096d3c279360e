// Contents of a support archive: named texts of bounded size, and notes on what is not in it.
#ifndef TRIREME_SRC_TOOLS_ENTRIES_HPP_
#define TRIREME_SRC_TOOLS_ENTRIES_HPP_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tools {

struct Entry {
  std::string name;  // within the archive
  std::string text;
  std::string note;  // difference from the file: "its last 1,048,576 bytes"
};

struct Contents {
  std::vector<Entry> entries;
  std::vector<std::string> notes;  // on files that are missing or cannot be read
};

// Beginning of the line in place of what was cut out of a file.
inline constexpr const char* kGapMark = "[left out: ";

// Bytes at a file's beginning and end; a longer file loses those between.
struct Bounds {
  std::size_t head = 0, tail = 0;
};

struct FileText {
  std::string text;  // with a line in place of what was cut out
  std::string note;  // says so; empty: the whole file
};

// A regular file's text within bounds. Notes in `contents.notes` why it cannot be read and returns
// nothing; a missing file is noted, too, if it is `expected`.
std::optional<FileText> ReadBounded(const std::string& path, Bounds bounds, bool expected,
                                    Contents& contents);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_ENTRIES_HPP_
