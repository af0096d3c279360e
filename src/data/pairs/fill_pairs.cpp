// FillPairs, LengthsOf: from the file to padded arrays.
#include <algorithm>

#include "trireme/data/batch.hpp"
#include "trireme/data/pair_batches.hpp"

namespace trireme::data {

ReadPairLengths LengthsOf(const PairFile& file, Split split) {
  return [&file, split](std::int64_t first, std::span<std::int32_t> source,
                        std::span<std::int32_t> target) {
    file.ReadLengths(Side::kSource, split, first, source);
    file.ReadLengths(Side::kTarget, split, first, target);
  };
}

void FillPairs(const PairFile& file, Split split, std::span<const std::int64_t> pairs,
               const PairBatchShape& shape, PairEntry& entry) {
  entry.pairs = std::ssize(pairs);
  entry.source_lengths.assign(pairs.size(), 0);
  entry.target_lengths.assign(pairs.size(), 0);
  entry.places.assign(pairs.begin(), pairs.end());
  entry.source_length = shape.source_length;
  entry.target_length = shape.target_length;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    file.ReadLengths(Side::kSource, split, pairs[i], std::span(entry.source_lengths).subspan(i, 1));
    file.ReadLengths(Side::kTarget, split, pairs[i], std::span(entry.target_lengths).subspan(i, 1));
  }
  entry.valid = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    entry.source_length = std::max<std::int64_t>(entry.source_length, entry.source_lengths[i]);
    entry.target_length = std::max<std::int64_t>(entry.target_length, entry.target_lengths[i]);
    entry.valid += entry.target_lengths[i];
  }
  const auto source_room = static_cast<std::size_t>(entry.pairs * entry.source_length);
  const auto target_room = static_cast<std::size_t>(entry.pairs * entry.target_length);
  entry.source.assign(source_room, 0);
  entry.inputs.assign(target_room, 0);
  entry.targets.assign(target_room, kMasked);
  const auto eos = static_cast<std::int32_t>(file.Of(Side::kTarget).Words().eos);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < entry.pairs; ++i) {
    const std::int64_t pair = pairs[static_cast<std::size_t>(i)];
    file.ReadText(Side::kSource, split, pair, ids);
    std::copy(ids.begin(), ids.end(), entry.source.begin() + i * entry.source_length);
    file.ReadText(Side::kTarget, split, pair, ids);
    std::copy(ids.begin(), ids.end(), entry.targets.begin() + i * entry.target_length);
    const auto inputs = entry.inputs.begin() + i * entry.target_length;
    *inputs = eos;
    std::copy(ids.begin(), ids.end() - 1, inputs + 1);
  }
}

}  // namespace trireme::data
