// Elements of a token file's arrays that cannot be what they should.
#ifndef TRIREME_SRC_DATA_ELEMENT_CHECKS_HPP_
#define TRIREME_SRC_DATA_ELEMENT_CHECKS_HPP_

#include <cstdint>
#include <limits>
#include <string>

#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

inline constexpr std::int64_t kNoElement = std::numeric_limits<std::int64_t>::max();

// Elements [begin, end) of an array, in this machine's order of bytes.
struct Elements {
  const void* values = nullptr;
  std::int64_t begin = 0, end = 0;
  std::uint64_t before = 0;  // value at begin - 1, of documents
};

// Value at an offset of the array, which must lie within.
std::uint64_t ValueAt(const StoredArray& array, const Elements& elements, std::int64_t offset);

// Offset in the array of the first bad element, or kNoElement: an id that is not below the
// vocabulary, a document that does not begin after the one before it or begins after the end, a
// mask that is neither 0 nor 1.
std::int64_t FirstBad(const TokenLayout& layout, Split split, Array array,
                      const Elements& elements);

// A bad element: its offset in the array, and the value that was read.
struct BadValue {
  std::int64_t offset = 0;
  std::uint64_t value = 0;
};

// InputError that names file, dataset and offset.
Error BadElement(const std::string& path, const TokenLayout& layout, Split split, Array array,
                 const BadValue& bad);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_ELEMENT_CHECKS_HPP_
