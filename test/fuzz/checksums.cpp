// Fuzz target: checksums.json. Accepted sums, written again, read as the same.
#include "safetensors.hpp"

#include "fuzz.hpp"

namespace trireme::fuzz {
namespace {

void Try(const std::string& text) {
  const auto sums = checkpoint::ParseChecksums(text, "checksums.json");
  const auto again =
      ReadOwn([&] { return checkpoint::ParseChecksums(checkpoint::ChecksumsText(sums), "again"); });
  Require(checkpoint::ChecksumsText(sums) == checkpoint::ChecksumsText(again), "other sums");
  for (const auto& [name, file] : sums) {
    std::int64_t at = 0;
    for (const checkpoint::Segment& segment : file.segments) {
      Require(segment.offset == at && segment.length > 0, "a hole in " + name);
      at += segment.length;
    }
    Require(at == file.bytes, "segments do not end with " + name);
  }
}

}  // namespace
}  // namespace trireme::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  trireme::fuzz::Accepted([&] { trireme::fuzz::Try(trireme::fuzz::Text(data, size)); });
  return 0;
}
