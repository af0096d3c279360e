// The safetensors format: 8 bytes of header length (little-endian), a JSON header that names each
// tensor's dtype, shape and byte range, then the tensors' raw little-endian elements without holes.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

inline constexpr std::int64_t kLengthBytes = 8;     // of the header length at the start of the file
inline constexpr std::int64_t kDataAlignment = 64;  // a cache line, and AVX-512's vector
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the limit of Python's safetensors
inline constexpr std::size_t kMaxNameBytes = 4096;            // of a tensor's name
inline constexpr std::size_t kMaxDimensions = 32;             // NumPy's limit

// A tensor file of a checkpoint; its tensors are F32 or F64.
struct Layout {
  std::string header;                 // the bytes before the data: length, JSON, padding
  std::vector<StoredTensor> entries;  // by offset
  std::int64_t bytes = 0;             // of the whole file
};

Dtype TypeOf(const StoredTensor& entry);  // of a tensor in a checkpoint

// The layout of a file with these tensors, in their order. Depends only on names, shapes and
// dtypes.
Layout BuildLayout(const std::vector<kernels::StateBlock>& blocks);

// Size of the header in a file of `file_bytes` that begins with the 8 bytes at `start`. Throws
// InputError if the length is impossible.
std::int64_t HeaderBytes(const char* start, std::int64_t file_bytes, const std::string& path);

// The inverse of BuildLayout. Entries are ordered by offset; at equal offsets empty tensors come
// first, by name. Needs memory in proportion to the header only. Throws an InputError with path,
// tensor, expected and found for: bad JSON, a name or number of dimensions beyond the limits above,
// a dtype other than F32 and F64, a byte range that does not fit the shape, overlaps, leaves a hole
// or lies outside the file, and a name given twice.
Layout ParseLayout(const std::string& header, std::int64_t file_bytes, const std::string& path);

// The same for a file with any of the format's dtypes and metadata.
TensorFile ParseTensorFile(const std::string& header, std::int64_t file_bytes,
                           const std::string& path);

// checksums.json: the XXH3 hash of every segment of a checkpoint's files, and checks against it.

// A run of bytes that one rank wrote. Segments follow what ranks hold, so their boundaries (unlike
// the tensor files' bytes) depend on the layout that wrote them.
struct Segment {
  std::int64_t offset = 0, length = 0;  // bytes
  std::uint64_t hash = 0;               // XXH3, 64 bits
};

// Small enough to locate damage, large enough for full disk speed. The header is one segment of any
// size.
inline constexpr std::int64_t kSegmentBytes = std::int64_t{4} << 20;

inline constexpr std::int64_t kMaxChecksumsBytes = std::int64_t{1} << 30;  // of the JSON text
inline constexpr std::size_t kMaxFileNameBytes = 255;  // the limit of file systems

struct FileSums {
  std::int64_t bytes = 0;         // of the file
  std::vector<Segment> segments;  // by offset, without holes
};

using Checksums = std::map<std::string, FileSums>;  // by file name

std::uint64_t Hash(const void* data, std::int64_t bytes);

std::string ChecksumsText(const Checksums& sums);
// Throws InputError (path, reason) if ChecksumsText cannot have written the text, for example if a
// segment is longer than allowed and would need a buffer of that length. Needs memory in proportion
// to the text only.
Checksums ParseChecksums(const std::string& text, const std::string& path);

// Throws Error(blame) with path, offset and both hashes if `data` does not have the segment's hash;
// `tensors` is used to name the tensor there.
void CheckSegment(const Segment& segment, const void* data, const std::string& path,
                  const std::vector<StoredTensor>& tensors, ExitCode blame);
// The same for a hash that the caller has computed.
void CheckHash(const Segment& segment, std::uint64_t found, const std::string& path,
               const std::vector<StoredTensor>& tensors, ExitCode blame);

}  // namespace trireme::checkpoint
