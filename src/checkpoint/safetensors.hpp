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

inline constexpr std::int64_t kLengthBytes = 8;     // of the header length at the file's start
inline constexpr std::int64_t kDataAlignment = 64;  // a cache line, and AVX-512's vector
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // accepted by Python's safetensors
inline constexpr std::size_t kMaxNameBytes = 4096;            // of a tensor's name
inline constexpr std::size_t kMaxDimensions = 32;             // as many as NumPy has

// A file of a checkpoint, whose tensors are F32 or F64.
struct Layout {
  std::string header;                 // the first bytes up to the data: length, JSON, padding
  std::vector<StoredTensor> entries;  // in the order of their offsets
  std::int64_t bytes = 0;             // of the whole file
};

Dtype TypeOf(const StoredTensor& entry);  // of a checkpoint's tensor

// The layout of a file with these tensors, in their order. Depends on names, shapes and dtypes
// only.
Layout BuildLayout(const std::vector<kernels::StateBlock>& blocks);

// The header's size in a file of `file_bytes` that begins with the 8 bytes at `start`. Throws
// InputError when that cannot be.
std::int64_t HeaderBytes(const char* start, std::int64_t file_bytes, const std::string& path);

// The inverse of BuildLayout; entries without elements come first of those at one offset, by name.
// Takes memory in proportion to the header only. Throws InputError naming path, tensor, expected
// and found: bad JSON, a name or a number of dimensions beyond the bounds above, a dtype other than
// F32 and F64, a byte range that does not fit the shape, overlaps, holes, or lies outside the file,
// a name given twice.
Layout ParseLayout(const std::string& header, std::int64_t file_bytes, const std::string& path);

// Likewise for a file of any of the format's dtypes. Throws InputError as ParseLayout.
TensorFile ParseTensorFile(const std::string& header, std::int64_t file_bytes,
                           const std::string& path);

// checksums.json: the XXH3 hash of every segment of a checkpoint's files, and checking files
// against it.

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
                  const std::vector<StoredTensor>& tensors, ExitCode blame);
// The same for the hash that was found.
void CheckHash(const Segment& segment, std::uint64_t found, const std::string& path,
               const std::vector<StoredTensor>& tensors, ExitCode blame);

}  // namespace trireme::checkpoint
