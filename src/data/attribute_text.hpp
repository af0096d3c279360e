// Texts in HDF5 attributes of files that may be hostile.
#ifndef TRIREME_SRC_DATA_ATTRIBUTE_TEXT_HPP_
#define TRIREME_SRC_DATA_ATTRIBUTE_TEXT_HPP_

#include <hdf5.h>

#include <cstdint>
#include <string>

namespace trireme::data {

inline constexpr std::int64_t kMaxAttributeText = std::int64_t{64} << 10;  // bytes

// The text of an attribute of one string, fixed or of variable length, of a file that OpenSerially
// opened, with `file_bytes` bytes. A text of variable length lies in a heap of the file, and
// HDF5 1.10 takes memory for the length that the attribute claims and copies the length that the
// heap claims: the heap is read here instead, and the two lengths are compared. `fault` is set, to
// what to say, for another type, more than kMaxAttributeText bytes, and damage.
std::string ReadAttributeText(hid_t attribute, std::int64_t file_bytes, std::string& fault);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_ATTRIBUTE_TEXT_HPP_
