// The checks of a token file's elements, as they arrive.
#include "element_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "plain_dataset.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

template <typename T>
std::span<const T> As(const Elements& elements) {
  return {static_cast<const T*>(elements.values),
          static_cast<std::size_t>(elements.end - elements.begin)};
}

// First element of at least `limit`.
template <typename T>
std::int64_t FirstFrom(const Elements& elements, std::uint64_t limit) {
  const std::span<const T> values = As<T>(elements);
  const auto at =
      std::find_if(values.begin(), values.end(), [limit](T value) { return value >= limit; });
  return at == values.end() ? kNoElement : elements.begin + (at - values.begin());
}

std::int64_t FirstBadDocument(const Elements& elements, std::uint64_t tokens) {
  std::uint64_t before = elements.before;
  std::int64_t offset = elements.begin;
  for (const std::uint64_t value : As<std::uint64_t>(elements)) {
    const bool good = offset == 0 ? value == 0 : value > before && value < tokens;
    if (!good) return offset;
    before = value;
    ++offset;
  }
  return kNoElement;
}

}  // namespace

std::uint64_t ValueAt(const StoredArray& array, const Elements& elements, std::int64_t offset) {
  const auto at = static_cast<std::size_t>(offset - elements.begin);
  switch (array.width) {
    case 1:
      return As<std::uint8_t>(elements)[at];
    case 2:
      return As<std::uint16_t>(elements)[at];
    case 4:
      return As<std::uint32_t>(elements)[at];
    default:
      return As<std::uint64_t>(elements)[at];
  }
}

std::int64_t FirstBad(const TokenLayout& layout, Split split, Array array,
                      const Elements& elements) {
  if (array == Array::kDocuments) {
    return FirstBadDocument(elements, static_cast<std::uint64_t>(layout.Tokens(split)));
  }
  if (array == Array::kMask) return FirstFrom<std::uint8_t>(elements, 2);
  const auto words = static_cast<std::uint64_t>(layout.vocabulary.words.size());
  return layout.Of(split, array).width == 2 ? FirstFrom<std::uint16_t>(elements, words)
                                            : FirstFrom<std::uint32_t>(elements, words);
}

Error BadElement(const std::string& path, const TokenLayout& layout, Split split, Array array,
                 const BadValue& bad) {
  const auto& [offset, value] = bad;
  const std::string name = layout.PathOf(split, array);
  if (array == Array::kDocuments) {
    return TokenFileError(
        path, name,
        fmt::format("{} at offset {}: beginnings ascend from 0 and stay below the "
                    "{} tokens",
                    value, offset, layout.Tokens(split)));
  }
  if (array == Array::kMask) {
    return TokenFileError(path, name,
                          fmt::format("{} at offset {}: 0 or 1 expected", value, offset));
  }
  return InputError(
      fmt::format("{}: {}: token at offset {} has id {}, but the vocabulary has {} words", path,
                  name, offset, value, layout.vocabulary.words.size()),
      "The file is damaged: write it again with job.task = tokenize.");
}

}  // namespace trireme::data
