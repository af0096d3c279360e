// Beginnings of documents within a range of tokens, from a list that is not in memory: found by
// interpolation, in one or two reads of a block.
#ifndef TRIREME_SRC_DATA_DOCUMENT_READER_HPP_
#define TRIREME_SRC_DATA_DOCUMENT_READER_HPP_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "positioned_file.hpp"

namespace trireme::data {

class DocumentReader {
 public:
  // Takes all memory that it needs. The layout and the file must outlive the reader.
  DocumentReader(const TokenLayout& layout, const PositionedFile& file, Split split);

  // Appends the documents that begin at tokens [begin, end), as offsets from `begin`. Throws as
  // PositionedFile::RequireGood does for what it reads on the way.
  void Find(std::int64_t begin, std::int64_t end, std::vector<std::int64_t>& found);

  static constexpr std::int64_t kBlock = 2047;  // elements of a read, with the one before: 16 KiB
  static constexpr std::int64_t kMostKnown = 4096;  // places
  static constexpr std::int64_t kBytes =
      (kBlock + 1) * 8 + kMostKnown * 16;  // of memory, of a reader

 private:
  // A place of the list, and the token at which its document begins.
  struct Place {
    std::int64_t at = 0, token = 0;
  };

  // Place of the first document that begins at `token` or after it.
  std::int64_t FirstFrom(std::int64_t token);
  // Reads a block around the place where interpolation expects `token`, or, if `halve`, around the
  // middle; strictly between two known places.
  void HoldBetween(const Place& low, const Place& high, std::int64_t token, bool halve);
  void Hold(std::int64_t begin, std::int64_t end);
  void Know(const Place& place);
  bool Holds(std::int64_t at) const { return at >= held_begin_ && at < held_end_; }
  std::int64_t Held(std::int64_t at) const {
    return buffer_[static_cast<std::size_t>(at - held_begin_ + 1)];
  }
  // Of the block that is held.
  std::int64_t FirstHeldFrom(std::int64_t token) const;

  const TokenLayout& layout_;
  const PositionedFile& file_;
  const Split split_;
  const std::int64_t documents_, tokens_;
  std::vector<std::int64_t> buffer_;  // the element before the block, and the block
  std::int64_t held_begin_ = 0, held_end_ = 0;
  std::vector<Place> known_;  // ascending, with gaps
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_DOCUMENT_READER_HPP_
