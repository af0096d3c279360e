// Reading and checking of single windows.
#include "window_reader.hpp"

#include <algorithm>
#include <span>

#include "element_checks.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kBlock = 512;  // documents that are read at once

template <typename T>
std::span<const T> As(const void* elements, std::int64_t count) {
  return {static_cast<const T*>(elements), static_cast<std::size_t>(count)};
}

}  // namespace

WindowReader::WindowReader(const std::string& path, const TokenLayout& layout)
    : path_(path), layout_(layout), file_(path, layout.state) {}

const void* WindowReader::Load(Split split, Array array, std::int64_t begin, std::int64_t end) {
  const StoredArray& stored = layout_.Of(split, array);
  const auto bytes = static_cast<std::size_t>((end - begin) * stored.width);
  if (buffer_.size() < bytes) buffer_.resize(bytes);
  file_.Read(layout_, split, array, begin, end, buffer_.data());
  Elements elements{buffer_.data(), begin, end};
  if (array == Array::kDocuments && begin > 0) {
    file_.Read(layout_, split, array, begin - 1, begin, &elements.before);
  }
  const std::int64_t bad = FirstBad(layout_, split, array, elements);
  if (bad == kNoElement) return buffer_.data();
  // A file that is being written to may show anything.
  file_.RequireUnchanged();
  ThrowBad(path_, layout_, split, array, bad, ValueAt(stored, elements, bad));
}

void WindowReader::Read(Split split, std::int64_t begin, std::int64_t count, Window& window) {
  window.ids.resize(static_cast<std::size_t>(count));
  window.documents.clear();
  window.counted.clear();
  const std::int64_t end = begin + count;
  const void* const ids = Load(split, Array::kTokens, begin, end);
  if (layout_.Of(split, Array::kTokens).width == 2) {
    std::ranges::copy(As<std::uint16_t>(ids, count), window.ids.begin());
  } else {
    std::ranges::copy(As<std::int32_t>(ids, count), window.ids.begin());
  }
  if (layout_.Of(split, Array::kDocuments).There()) ReadDocuments(split, begin, end, window);
  if (layout_.Of(split, Array::kMask).There()) {
    const auto counted = As<std::uint8_t>(Load(split, Array::kMask, begin, end), count);
    window.counted.assign(counted.begin(), counted.end());
  }
}

std::vector<std::int64_t> WindowReader::Documents(Split split) {
  const std::int64_t count = layout_.Of(split, Array::kDocuments).count;
  std::vector<std::int64_t> documents;
  documents.reserve(static_cast<std::size_t>(count));
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t last = std::min(at + kBlock, count);
    const auto block = As<std::int64_t>(Load(split, Array::kDocuments, at, last), last - at);
    documents.insert(documents.end(), block.begin(), block.end());
  }
  return documents;
}

std::int64_t WindowReader::FirstDocumentFrom(Split split, std::int64_t token) {
  std::int64_t low = 0, high = layout_.Of(split, Array::kDocuments).count;
  while (high - low > kBlock) {
    const std::int64_t middle = low + (high - low) / 2;
    const auto value = As<std::int64_t>(Load(split, Array::kDocuments, middle, middle + 1), 1);
    (value.front() < token ? low : high) = middle;
  }
  if (low == high) return low;
  const auto block = As<std::int64_t>(Load(split, Array::kDocuments, low, high), high - low);
  return low + (std::lower_bound(block.begin(), block.end(), token) - block.begin());
}

void WindowReader::ReadDocuments(Split split, std::int64_t begin, std::int64_t end,
                                 Window& window) {
  window.documents.reserve(static_cast<std::size_t>(end - begin));
  const std::int64_t documents = layout_.Of(split, Array::kDocuments).count;
  std::int64_t at = FirstDocumentFrom(split, begin);
  while (at < documents) {
    const std::int64_t last = std::min(at + kBlock, documents);
    for (const std::int64_t first :
         As<std::int64_t>(Load(split, Array::kDocuments, at, last), last - at)) {
      if (first >= end) return;
      window.documents.push_back(first - begin);
    }
    at = last;
  }
}

}  // namespace trireme::data
