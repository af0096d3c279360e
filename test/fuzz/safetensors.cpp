// Fuzz target: the start of a safetensors file after 8 bytes with the length of its data. An
// accepted header, written again by ours, reads as the same tensors.
#include "safetensors.hpp"

#include <cstring>

#include "fuzz.hpp"

namespace trireme::fuzz {
namespace {

void RequireSameTensors(const checkpoint::Layout& layout, const checkpoint::Layout& again) {
  Require(layout.entries.size() == again.entries.size(), "another number of tensors");
  for (std::size_t i = 0; i < layout.entries.size(); ++i) {
    const checkpoint::Entry &a = layout.entries[i], &b = again.entries[i];
    Require(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes,
            "another tensor " + std::to_string(i));
  }
}

// As a checkpoint's reader does it: the length, then no more than that.
void Try(const std::string& file, std::int64_t file_bytes) {
  const std::int64_t bytes = checkpoint::HeaderBytes(file.data(), file_bytes, "a.safetensors");
  Require(bytes <= file_bytes, "a header longer than the file");
  const std::string header = file.substr(0, static_cast<std::size_t>(bytes));
  if (std::ssize(header) < bytes) return;  // a reader has the whole header, or fails before
  // Every file of a checkpoint is one of the format.
  const auto any = checkpoint::ParseTensorFile(header, file_bytes, "a.safetensors");
  const auto layout = checkpoint::ParseLayout(header, file_bytes, "a.safetensors");
  Require(any.tensors.size() == layout.entries.size(), "another number of tensors");
  std::vector<kernels::StateBlock> blocks(layout.entries.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const checkpoint::Entry& entry = layout.entries[i];
    Require(entry.offset >= bytes && entry.bytes >= 0 && entry.bytes <= file_bytes - entry.offset,
            "a tensor outside the file");
    blocks[i].name = entry.name;
    blocks[i].dtype = entry.dtype;
    blocks[i].shape = entry.shape;
  }
  const checkpoint::Layout written = checkpoint::BuildLayout(blocks);
  RequireSameTensors(layout, ReadOwn([&] {
                       return checkpoint::ParseLayout(written.header, written.bytes, "again");
                     }));
}

}  // namespace
}  // namespace trireme::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  std::uint64_t tensor_bytes = 0;
  if (size < sizeof tensor_bytes + checkpoint::kLengthBytes) return 0;
  std::memcpy(&tensor_bytes, data, sizeof tensor_bytes);
  const std::string file = fuzz::Text(data + sizeof tensor_bytes, size - sizeof tensor_bytes);
  // Of a file that exists: its length fits 63 bits, and holds what was read of it.
  const auto file_bytes = static_cast<std::int64_t>(tensor_bytes >> 2) + std::ssize(file);
  fuzz::Accepted([&] { fuzz::Try(file, file_bytes); });
  return 0;
}
