// FillMicroBatch: windows of the token array, side by side and padded to one length.
#include "trireme/data/batch.hpp"

namespace trireme::data {

void FillMicroBatch(const TokenFile& file, Split split, std::span<const Sample> samples,
                    std::int64_t length, MicroBatch& batch) {
  batch.sequences = static_cast<std::int64_t>(samples.size());
  batch.length = length;
  batch.valid = 0;
  const auto cells = static_cast<std::size_t>(batch.sequences * length);
  batch.inputs.assign(cells, 0);
  batch.targets.assign(cells, kMasked);
  batch.ordinals.clear();
  std::size_t row = 0;
  for (const Sample& sample : samples) {
    batch.ordinals.push_back(static_cast<std::uint64_t>(sample.ordinal));
    batch.valid += sample.targets;
    // A target is the next position's input: each token is looked up once.
    std::int32_t token = file.Token(split, sample.start);
    for (std::int64_t t = 0; t < sample.targets; ++t) {
      batch.inputs[row + static_cast<std::size_t>(t)] = token;
      token = file.Token(split, sample.start + t + 1);
      batch.targets[row + static_cast<std::size_t>(t)] = token;
    }
    row += static_cast<std::size_t>(length);
  }
}

}  // namespace trireme::data
