// The bytes of a text file, unpacked, one buffer after the other.
#ifndef TRIREME_SRC_DATA_TEXT_TEXT_SOURCE_HPP_
#define TRIREME_SRC_DATA_TEXT_TEXT_SOURCE_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "inputs.hpp"

namespace trireme::data {

class TextSource {
 public:
  virtual ~TextSource() = default;
  // Fills `to`, less only at the end of the text. Returns the bytes written. Throws InputError for
  // a damaged or shortened file, RunError for a failing disk; both name the file.
  virtual std::size_t Read(std::span<char> to) = 0;
  // Bytes of the file read since the beginning, packed ones as they are on disk.
  virtual std::int64_t BytesRead() const = 0;
};

// The text from byte `begin` on, which is 0 for a packed file. Throws InputError if it cannot be
// opened.
std::unique_ptr<TextSource> OpenText(const TextFile& file, std::int64_t begin);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_TEXT_SOURCE_HPP_
