// The files that a split's key names: paths and globs with commas, and what their endings say.
#ifndef TRIREME_SRC_DATA_TEXT_INPUTS_HPP_
#define TRIREME_SRC_DATA_TEXT_INPUTS_HPP_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

enum class Packing { kNone, kGzip, kZstd };

struct TextFile {
  std::string path;
  Split split = Split::kTrain;  // of its documents; with fractions a hash may say otherwise
  bool json_lines = false;      // .jsonl, .json, .ndjson; else plain text
  Packing packing = Packing::kNone;
  std::int64_t bytes = 0;  // on disk
};

// Files of a list of paths and globs, separated by commas: in the list's order, those of a glob in
// the order of their bytes. Throws InputError, without naming the key, for a part that matches
// nothing, and for what is not a readable file.
std::vector<TextFile> FindTextFiles(const std::string& list, Split split);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_INPUTS_HPP_
