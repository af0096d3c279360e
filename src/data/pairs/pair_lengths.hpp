// Lengths of texts from their beginnings.
#ifndef TRIREME_SRC_DATA_PAIRS_PAIR_LENGTHS_HPP_
#define TRIREME_SRC_DATA_PAIRS_PAIR_LENGTHS_HPP_

#include <cstdint>
#include <span>
#include <string>

namespace trireme::data {

// begins: [lengths.size() + 1], of texts `first` and following, and the end of the last one. where:
// "file: array", for messages. Throws RunError for a text longer than 31 bits.
void LengthsBetween(std::span<const std::int64_t> begins, std::int64_t first,
                    const std::string& where, std::span<std::int32_t> lengths);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_PAIRS_PAIR_LENGTHS_HPP_
