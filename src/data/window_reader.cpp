// Reading and checking of single windows.
#include "window_reader.hpp"

#include <algorithm>
#include <span>

#include "element_checks.hpp"

namespace trireme::data {

namespace {

template <typename T>
std::span<const T> As(const void* elements, std::int64_t count) {
  return {static_cast<const T*>(elements), static_cast<std::size_t>(count)};
}

// Sets the size; the memory taken is that of the largest size so far, no more.
template <typename T>
void Resize(std::vector<T>& values, std::int64_t count) {
  values.reserve(static_cast<std::size_t>(count));
  values.resize(static_cast<std::size_t>(count));
}

}  // namespace

WindowReader::WindowReader(const TokenLayout& layout, const PositionedFile& file, Split split,
                           bool documents)
    : layout_(layout), file_(file), split_(split) {
  if (documents && layout.Of(split, Array::kDocuments).There()) {
    documents_.emplace(layout, file, split);
  }
}

const void* WindowReader::Load(Array array, std::int64_t begin, std::int64_t end) {
  const auto bytes = (end - begin) * layout_.Of(split_, array).width;
  if (std::ssize(buffer_) < bytes) Resize(buffer_, bytes);
  file_.Read(layout_, split_, array, begin, end, buffer_.data());
  file_.RequireGood(layout_, split_, array, {buffer_.data(), begin, end});
  return buffer_.data();
}

void WindowReader::Read(std::int64_t begin, std::int64_t count, Window& window) {
  Resize(window.ids, count);
  window.documents.clear();
  window.counted.clear();
  const std::int64_t end = begin + count;
  const void* const ids = Load(Array::kTokens, begin, end);
  if (layout_.Of(split_, Array::kTokens).width == 2) {
    std::ranges::copy(As<std::uint16_t>(ids, count), window.ids.begin());
  } else {
    std::ranges::copy(As<std::int32_t>(ids, count), window.ids.begin());
  }
  if (documents_) {
    window.documents.reserve(static_cast<std::size_t>(count));
    documents_->Find(begin, end, window.documents);
  }
  if (!layout_.Of(split_, Array::kMask).There()) return;
  Resize(window.counted, count);
  std::ranges::copy(As<std::uint8_t>(Load(Array::kMask, begin, end), count),
                    window.counted.begin());
}

std::vector<std::int64_t> WindowReader::Documents() const {
  std::vector<std::int64_t> documents;
  if (!documents_) return documents;
  const std::int64_t count = layout_.Of(split_, Array::kDocuments).count;
  Resize(documents, count);
  file_.Read(layout_, split_, Array::kDocuments, 0, count, documents.data());
  file_.RequireGood(layout_, split_, Array::kDocuments, {documents.data(), 0, count});
  return documents;
}

}  // namespace trireme::data
