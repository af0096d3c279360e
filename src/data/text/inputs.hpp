// Finds the text files that a split's key names (paths and globs, separated by commas), and tells
// their formats by their first bytes, or by their names where those say nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

enum class Packing { kNone, kGzip, kZstd };

struct TextFile {
  std::string path;
  Split split = Split::kTrain;  // of its documents, unless fractions give some to valid and test
  bool json_lines = false;      // .jsonl, .json, .ndjson in any case; otherwise plain text
  Packing packing = Packing::kNone;
  std::int64_t bytes = 0;               // on disk
  std::uint64_t device = 0, inode = 0;  // identify the file itself, whatever its name
};

// Finds the files of a list of paths and globs separated by commas (within a name: "\,"). They come
// in the list's order, those of a glob sorted by bytes. Throws InputError, which does not name the
// key, for a part that matches nothing, for anything but a readable file, and for files that are
// not text: archives, UTF-16, known other formats.
std::vector<TextFile> FindTextFiles(const std::string& list, Split split);

// Whether writing the token file `target` would replace this file, even under another name.
bool IsReplaced(const TextFile& file, const std::string& target);

// Warnings, a sentence each, about files that are named twice, in one split or in two.
std::vector<std::string> NamedTwice(const std::vector<TextFile>& files);

// The unpacked bytes of a text file, read in order.
class TextSource {
 public:
  virtual ~TextSource() = default;
  // Fills `to`, with less only at the end of the text. Returns the number of bytes. Throws
  // InputError for a damaged or shortened file and RunError for a failing disk; both name the file.
  virtual std::size_t Read(std::span<char> to) = 0;
  // Bytes of the file read so far; for a packed file, packed bytes.
  virtual std::int64_t BytesRead() const = 0;
};

// Opens a text at byte `begin`, which is 0 for a packed file. Throws InputError if that fails.
std::unique_ptr<TextSource> OpenText(const TextFile& file, std::int64_t begin);

}  // namespace trireme::data
