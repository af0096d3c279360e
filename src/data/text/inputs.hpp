// The files that a split's key names, paths and globs with commas, and what they are: by their
// first bytes, and by their names where those say nothing.
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
  Split split = Split::kTrain;  // of its documents; with fractions a hash may say otherwise
  bool json_lines = false;      // .jsonl, .json, .ndjson, in any case; else plain text
  Packing packing = Packing::kNone;
  std::int64_t bytes = 0;               // on disk
  std::uint64_t device = 0, inode = 0;  // of the file itself, whatever its name
};

// Files of a list of paths and globs, separated by commas (a comma within a name: "\\,"): in the
// list's order, those of a glob in the order of their bytes. Throws InputError, without naming the
// key, for a part that matches nothing, for what is not a readable file, and for one that is no
// text: archives, text of two bytes a character, formats of others.
std::vector<TextFile> FindTextFiles(const std::string& list, Split split);

// Whether writing the token file `target` would replace this file, whatever their names are.
bool IsReplaced(const TextFile& file, const std::string& target);

// For warnings, a sentence each: files that are named twice, in one split or in two.
std::vector<std::string> NamedTwice(const std::vector<TextFile>& files);

// The bytes of a text file, unpacked, one buffer after the other.

class TextSource {
 public:
  virtual ~TextSource() = default;
  // Fills `to`, less only at the end of the text. Returns the bytes written. Throws InputError for
  // a damaged or shortened file, RunError for a failing disk; both name the file.
  virtual std::size_t Read(std::span<char> to) = 0;
  // Bytes of the file read since the beginning, packed ones as they are on disk.
  virtual std::int64_t BytesRead() const = 0;
};

// The text from byte `begin` on, which is 0 for a packed file. Throws InputError if it cannot be
// opened.
std::unique_ptr<TextSource> OpenText(const TextFile& file, std::int64_t begin);

}  // namespace trireme::data
