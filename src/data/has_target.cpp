// HasTarget: the split in pieces, from memory or from the file.
#include "trireme/data/has_target.hpp"

#include <algorithm>

#include "trireme/data/split_reader.hpp"

namespace trireme::data {

bool HasTarget(const TokenFile& file, Split split, bool document_mask) {
  if (!file.HasMask(split) && !document_mask) return true;
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;  // tokens
  SplitReader reader(file, split, document_mask);
  Window window;
  const std::int64_t size = reader.Size();
  for (std::int64_t begin = 1; begin < size; begin += kPiece) {  // the first token is no target
    reader.Read(begin, std::min(kPiece, size - begin), window);
    CountTargets(window, document_mask);
    if (std::ranges::find(window.counted, 1) != window.counted.end()) return true;
  }
  return false;
}

}  // namespace trireme::data
