// Cutting of files into units, and their distribution: largest first, to the rank with least.
#include "units.hpp"

#include <algorithm>
#include <numeric>

namespace trireme::data {

namespace {

constexpr std::int64_t kPackedWeight = 3;  // bytes of text per packed byte, about

}  // namespace

std::vector<TextUnit> CutIntoUnits(std::span<const TextFile> files, DocumentEnd document,
                                   std::int64_t range_bytes) {
  std::vector<TextUnit> units;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const TextFile& file = files[f];
    const bool whole =
        file.packing != Packing::kNone || (!file.json_lines && document == DocumentEnd::kFile);
    const std::int64_t step = whole ? std::max<std::int64_t>(file.bytes, 1) : range_bytes;
    for (std::int64_t begin = 0; begin < file.bytes; begin += step) {
      units.push_back({f, begin, std::min(begin + step, file.bytes)});
    }
  }
  return units;
}

std::vector<std::size_t> UnitsOfRank(std::span<const TextUnit> units,
                                     std::span<const TextFile> files, int rank, int ranks) {
  const auto weight = [&](std::size_t unit) {
    const TextUnit& one = units[unit];
    const bool packed = files[one.file].packing != Packing::kNone;
    return (one.end - one.begin) * (packed ? kPackedWeight : 1);
  };
  std::vector<std::size_t> order(units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weight(a) > weight(b); });
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  std::vector<std::size_t> mine;
  for (const std::size_t unit : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += weight(unit);
    if (least - loads.begin() == rank) mine.push_back(unit);
  }
  std::sort(mine.begin(), mine.end());
  return mine;
}

}  // namespace trireme::data
