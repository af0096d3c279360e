// Pieces of work: ranges of plain files and whole packed files, the same for any number of ranks.
#ifndef TRIREME_SRC_DATA_TEXT_UNITS_HPP_
#define TRIREME_SRC_DATA_TEXT_UNITS_HPP_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inputs.hpp"
#include "trireme/data/options.hpp"

namespace trireme::data {

inline constexpr std::int64_t kUnitBytes = std::int64_t{4} << 20;  // of a range of a plain file

// The documents of `file` that begin within [begin, end).
struct TextUnit {
  std::size_t file = 0;  // its place in the list
  std::int64_t begin = 0, end = 0;
};

// Units in the order of their documents: of the files, then of the bytes. A file that cannot be
// entered in its middle (packed, or one document) is one unit.
std::vector<TextUnit> CutIntoUnits(std::span<const TextFile> files, DocumentEnd document,
                                   std::int64_t range_bytes);

// Places in `units` that a rank works on, ascending; all ranks get about as many bytes.
std::vector<std::size_t> UnitsOfRank(std::span<const TextUnit> units,
                                     std::span<const TextFile> files, int rank, int ranks);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_UNITS_HPP_
