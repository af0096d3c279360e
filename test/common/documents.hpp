// Beginnings of documents drawn at random, as data::Entry::begins has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "trireme/base/partition.hpp"

namespace trireme::test {

// [sequences, length]: documents of 1 to 2 mean - 1 tokens, of which the first of a window may have
// begun before it. The same values on every machine.
inline std::vector<std::int32_t> RandomBegins(std::int64_t sequences, std::int64_t length,
                                              std::int64_t mean, std::uint32_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::int32_t> begins;
  for (std::int64_t b = 0; b < sequences; ++b) {
    std::int64_t begin = 0, left = 0;
    for (std::int64_t t = 0; t < length; ++t, --left) {
      if (left == 0) {
        begin = t;
        left = 1 + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(2 * mean - 1));
      }
      begins.push_back(static_cast<std::int32_t>(begin));
    }
  }
  return begins;
}

// The part of [sequences, length] begins at `at` of each sequence.
inline std::vector<std::int32_t> BeginsAt(const std::vector<std::int32_t>& begins,
                                          std::int64_t length, const Positions& at) {
  std::vector<std::int32_t> part;
  const auto sequences = static_cast<std::int64_t>(begins.size()) / length;
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t p = 0; p < at.Count(); ++p) {
      part.push_back(begins[static_cast<std::size_t>(b * length + at.At(p))]);
    }
  }
  return part;
}

inline const std::int32_t* DataOf(const std::vector<std::int32_t>& begins) {
  return begins.empty() ? nullptr : begins.data();
}

}  // namespace trireme::test
