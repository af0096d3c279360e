// FillPairs, LengthsOf: from the file to padded arrays.
#include <algorithm>

#include "trireme/data/batch.hpp"
#include "trireme/data/pair_batches.hpp"

namespace trireme::data {

namespace {

// Replaces `ids` by the texts of pairs, one after the other, and `lengths` by their tokens. Returns
// the largest length.
std::int64_t ReadTexts(const PairFile& file, Side side, Split split,
                       std::span<const std::int64_t> pairs, std::vector<std::int32_t>& ids,
                       std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> text;
  std::int64_t longest = 0;
  lengths.clear();
  for (const std::int64_t pair : pairs) {
    file.ReadText(side, split, pair, text);
    ids.insert(ids.end(), text.begin(), text.end());
    lengths.push_back(static_cast<std::int32_t>(text.size()));
    longest = std::max(longest, std::ssize(text));
  }
  return longest;
}

}  // namespace

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
  entry.places.assign(pairs.begin(), pairs.end());
  // The texts one after the other, then side by side.
  std::vector<std::int32_t> sources, targets;
  entry.source_length = ReadTexts(file, Side::kSource, split, pairs, sources, entry.source_lengths);
  entry.target_length = ReadTexts(file, Side::kTarget, split, pairs, targets, entry.target_lengths);
  entry.source_length = std::max(entry.source_length, shape.source_length);
  entry.target_length = std::max(entry.target_length, shape.target_length);
  entry.valid = std::ssize(targets);
  entry.source.assign(static_cast<std::size_t>(entry.pairs * entry.source_length), 0);
  entry.inputs.assign(static_cast<std::size_t>(entry.pairs * entry.target_length), 0);
  entry.targets.assign(static_cast<std::size_t>(entry.pairs * entry.target_length), kMasked);
  const auto eos = static_cast<std::int32_t>(file.Of(Side::kTarget).Words().eos);
  auto source = sources.cbegin(), target = targets.cbegin();
  for (std::int64_t i = 0; i < entry.pairs; ++i) {
    const std::int32_t source_tokens = entry.source_lengths[static_cast<std::size_t>(i)];
    const std::int32_t target_tokens = entry.target_lengths[static_cast<std::size_t>(i)];
    std::copy_n(source, source_tokens, entry.source.begin() + i * entry.source_length);
    std::copy_n(target, target_tokens, entry.targets.begin() + i * entry.target_length);
    const auto inputs = entry.inputs.begin() + i * entry.target_length;
    *inputs = eos;
    std::copy_n(target, target_tokens - 1, inputs + 1);
    source += source_tokens;
    target += target_tokens;
  }
}

void FillEntry(const PairFile& file, Split split, std::span<const std::int64_t> pairs,
               const PairBatchShape& shape, std::int64_t before, Entry& entry) {
  PairEntry texts;
  texts.source.swap(entry.sources);
  texts.source_lengths.swap(entry.source_lengths);
  texts.inputs.swap(entry.inputs);
  texts.targets.swap(entry.targets);
  texts.target_lengths.swap(entry.target_lengths);
  FillPairs(file, split, pairs, shape, texts);
  entry.sequences = texts.pairs;
  entry.length = texts.target_length;
  entry.source_length = texts.source_length;
  entry.sources.swap(texts.source);
  entry.source_lengths.swap(texts.source_lengths);
  entry.inputs.swap(texts.inputs);
  entry.targets.swap(texts.targets);
  entry.target_lengths.swap(texts.target_lengths);
  entry.ordinals.clear();
  for (const std::int64_t pair : pairs) {
    entry.ordinals.push_back(static_cast<std::uint64_t>(before + pair));
  }
  entry.begins.clear();
  entry.positions = PositionsOf(entry.length, 0, 1);
  entry.valid = texts.valid;
  entry.visible_keys = 0;
}

}  // namespace trireme::data
