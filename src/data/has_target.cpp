// HasTarget: the split in pieces, from memory or from the file.
#include "trireme/data/has_target.hpp"

#include <algorithm>
#include <optional>

#include "window_reader.hpp"

namespace trireme::data {

namespace {

// Whether a token of the window counts that begins no document.
bool HasTarget(const Window& window, bool document_mask) {
  auto document = window.documents.begin();
  for (std::int64_t i = 0; i < std::ssize(window.ids); ++i) {
    const bool begins = document != window.documents.end() && *document == i;
    if (begins) ++document;
    const bool counts = window.counted.empty() || window.counted[static_cast<std::size_t>(i)] != 0;
    if (counts && !(begins && document_mask)) return true;
  }
  return false;
}

}  // namespace

bool HasTarget(const TokenFile& file, Split split, bool document_mask) {
  if (!file.HasMask(split) && !document_mask) return true;
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;  // tokens
  std::optional<WindowReader> reader;
  if (file.Streams()) reader.emplace(file.Layout(), file.Opened(), split, document_mask);
  Window window;
  const std::int64_t size = file.Size(split);
  for (std::int64_t begin = 1; begin < size; begin += kPiece) {  // the first token is no target
    const std::int64_t count = std::min(kPiece, size - begin);
    if (reader) {
      reader->Read(begin, count, window);
      reader->RequireUnchanged();
    } else {
      file.Read(split, begin, count, window);
    }
    if (HasTarget(window, document_mask)) return true;
  }
  return false;
}

}  // namespace trireme::data
