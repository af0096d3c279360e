// A micro-batch of token windows, padded to one length, as a training step consumes it.
#ifndef TRIREME_DATA_BATCH_HPP_
#define TRIREME_DATA_BATCH_HPP_

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/base/positions.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

inline constexpr std::int32_t kMasked = -1;  // a target that does not exist: no loss, no gradient

struct MicroBatch {
  std::int64_t sequences = 0;           // B
  std::int64_t length = 0;              // T: positions of each window that this rank holds
  std::vector<std::int32_t> inputs;     // [B, T]; 0 behind a short window's end
  std::vector<std::int32_t> targets;    // [B, T]; kMasked behind a short window's end
  std::vector<std::uint64_t> ordinals;  // [B]: each window's Sample::ordinal, for dropout
  std::int64_t group = 0;               // canonical: its leaf's group, of this data rank's
  std::int64_t valid = 0;               // targets that count, of those held
  Positions positions = {};             // where those held lie in the window
};

// Fills `batch` with those of `positions` that lie within [0, length) of the windows of `samples`,
// each window `length` long; the default is all.
void FillMicroBatch(const TokenFile& file, Split split, std::span<const Sample> samples,
                    std::int64_t length, MicroBatch& batch, const Positions& positions = {});

}  // namespace trireme::data

#endif  // TRIREME_DATA_BATCH_HPP_
