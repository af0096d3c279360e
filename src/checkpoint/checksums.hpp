// checksums.json: the XXH3 hash of every segment of a checkpoint's files, and checking files
// against it.
#ifndef TRIREME_SRC_CHECKPOINT_CHECKSUMS_HPP_
#define TRIREME_SRC_CHECKPOINT_CHECKSUMS_HPP_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "safetensors.hpp"
#include "trireme/base/error.hpp"

namespace trireme::checkpoint {

// A run of bytes that one rank wrote. Segments follow what ranks hold, so their cuts (unlike the
// bytes of the tensor files) depend on the layout that wrote them.
struct Segment {
  std::int64_t offset = 0, length = 0;  // bytes
  std::uint64_t hash = 0;               // XXH3, 64 bits
};

// Small enough to name a damaged place, large enough for full disk speed. The header is one
// segment, whatever its size.
inline constexpr std::int64_t kSegmentBytes = std::int64_t{4} << 20;

inline constexpr std::int64_t kMaxChecksumsBytes = std::int64_t{1} << 30;  // of the JSON text
inline constexpr std::size_t kMaxFileNameBytes = 255;  // allowed by file systems

struct FileSums {
  std::int64_t bytes = 0;         // of the file
  std::vector<Segment> segments;  // in the order of their offsets, without holes
};

using Checksums = std::map<std::string, FileSums>;  // by file name

std::uint64_t Hash(const void* data, std::int64_t bytes);

std::string ChecksumsText(const Checksums& sums);
// Throws InputError (path, reason) when the text is not what ChecksumsText writes, among that: a
// segment longer than those that are written, which would ask for a buffer of its length. Takes
// memory in proportion to the text only.
Checksums ParseChecksums(const std::string& text, const std::string& path);

// Throws Error(blame) naming path, offset and both hashes when `data` is not what `segment` says;
// `tensors` says which tensor lies there.
void CheckSegment(const Segment& segment, const void* data, const std::string& path,
                  const std::vector<Entry>& tensors, ExitCode blame);
// The same for the hash that was found.
void CheckHash(const Segment& segment, std::uint64_t found, const std::string& path,
               const std::vector<Entry>& tensors, ExitCode blame);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_CHECKSUMS_HPP_
