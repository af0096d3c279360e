// The inverse of Permute: finds the step of the epoch's short window.
#ifndef TRIREME_SRC_DATA_PERMUTATION_HPP_
#define TRIREME_SRC_DATA_PERMUTATION_HPP_

#include <cstdint>

#include "trireme/data/sampler.hpp"

namespace trireme::data {

// The index that Permute takes to `image`.
std::int64_t PermuteBack(std::uint32_t seed, std::int64_t epoch, std::int64_t image,
                         std::int64_t count);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_PERMUTATION_HPP_
