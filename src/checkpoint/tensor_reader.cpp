// Files of tensors: the header of any, and parts of a checkpoint's, checked against its checksums.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "checksums.hpp"
#include "folder.hpp"
#include "safetensors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/positioned_file.hpp"
#include "trireme/base/posix_file.hpp"
#include "trireme/checkpoint/tensor_file.hpp"

namespace trireme::checkpoint {

TensorFile InspectTensorFile(const std::string& path) {
  RefuseForeignFile(path);
  const PositionedFile file(path, PositionedFile::Access::kRead, ExitCode::kBadInput);
  const std::int64_t size = file.Size();
  if (size < kLengthBytes) {
    throw InputError(fmt::format("{}: a safetensors file has at least {} bytes, this one {}", path,
                                 kLengthBytes, size));
  }
  std::string header(kLengthBytes, '\0');
  file.Read(header.data(), kLengthBytes, 0);
  header.resize(static_cast<std::size_t>(HeaderBytes(header.data(), size, path)));
  file.Read(header.data(), std::ssize(header), 0);
  return ParseTensorFile(header, size, path);
}

struct TensorReader::State {
  explicit State(const std::string& path)
      : file(path, PositionedFile::Access::kRead, ExitCode::kBadInput) {}

  // A segment's bytes, in `to`.
  void Take(const Segment& segment, void* to) const {
    file.Read(to, segment.length, segment.offset);
    CheckSegment(segment, to, file.Path(), {}, ExitCode::kBadInput);
  }

  PositionedFile file;
  FileSums sums;
  std::vector<StoredTensor> tensors;
};

TensorReader::TensorReader(const std::string& checkpoint, const std::string& file)
    : state_(std::make_unique<State>(checkpoint + "/" + file + ".safetensors")) {
  const std::string name = file + ".safetensors";
  const Checksums all = ReadChecksums(checkpoint);
  const auto found = all.find(name);
  if (found == all.end() || found->second.segments.empty()) {
    throw InputError(fmt::format("{}/{}: does not list {}", checkpoint, kChecksumsFile, name));
  }
  state_->sums = found->second;
  const std::string& path = state_->file.Path();
  if (const std::int64_t size = state_->file.Size(); size != state_->sums.bytes) {
    throw InputError(fmt::format("{}: {} bytes expected, {} found", path, state_->sums.bytes, size),
                     "take another checkpoint of the run");
  }
  std::string header(static_cast<std::size_t>(state_->sums.segments.front().length), '\0');
  state_->Take(state_->sums.segments.front(), header.data());
  for (const Entry& entry : ParseLayout(header, state_->sums.bytes, path).entries) {
    state_->tensors.push_back(
        {entry.name, SafetensorsName(entry.dtype), entry.shape, entry.offset, entry.bytes});
  }
}

TensorReader::~TensorReader() = default;

const std::vector<StoredTensor>& TensorReader::Tensors() const { return state_->tensors; }

void TensorReader::Read(std::int64_t offset, std::int64_t bytes, void* to, Kept& kept) const {
  const std::vector<Segment>& segments = state_->sums.segments;
  char* out = static_cast<char*>(to);
  const std::int64_t end = offset + bytes;
  auto at = std::upper_bound(segments.begin(), segments.end(), offset,
                             [](std::int64_t a, const Segment& b) { return a < b.offset; }) -
            1;
  for (; offset < end; ++at) {
    const std::int64_t stop = std::min(end, at->offset + at->length);
    if (offset == at->offset && stop == at->offset + at->length) {
      state_->Take(*at, out);
    } else {
      if (kept.offset != at->offset) {
        kept.offset = -1;
        kept.bytes.resize(static_cast<std::size_t>(at->length));
        state_->Take(*at, kept.bytes.data());
        kept.offset = at->offset;
      }
      std::memcpy(out, kept.bytes.data() + (offset - at->offset),
                  static_cast<std::size_t>(stop - offset));
    }
    out += stop - offset;
    offset = stop;
  }
}

}  // namespace trireme::checkpoint
