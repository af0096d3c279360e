// FillEntry: windows of the token array, side by side and padded to one length.
#include "trireme/data/batch.hpp"

#include <algorithm>

namespace trireme::data {

namespace {

// Fills inputs and targets from `row` on with positions `part` of a sample's window.
void FillPart(const TokenFile& file, Split split, const Sample& sample, const Part& part,
              std::size_t row, Entry& batch) {
  const std::int64_t end = std::min(part.end, sample.targets);
  if (part.begin >= end) return;
  batch.valid += end - part.begin;
  // A target is the next position's input: each token is looked up once.
  std::int32_t token = file.Token(split, sample.start + part.begin);
  for (std::int64_t t = part.begin; t < end; ++t, ++row) {
    batch.inputs[row] = token;
    token = file.Token(split, sample.start + t + 1);
    batch.targets[row] = token;
  }
}

}  // namespace

void FillEntry(const Corpus& corpus, Split split, std::span<const Sample> samples,
               std::int64_t length, Entry& batch, const Positions& positions) {
  const auto within = [&](const Part& part) {
    return Part{std::min(part.begin, length), std::min(part.end, length)};
  };
  batch.positions = {within(positions.early), within(positions.late)};
  batch.sequences = static_cast<std::int64_t>(samples.size());
  batch.length = batch.positions.Count();
  batch.valid = 0;
  const auto cells = static_cast<std::size_t>(batch.sequences * batch.length);
  batch.inputs.assign(cells, 0);
  batch.targets.assign(cells, kMasked);
  batch.ordinals.clear();
  std::size_t row = 0;
  for (const Sample& sample : samples) {
    batch.ordinals.push_back(static_cast<std::uint64_t>(sample.ordinal));
    for (const Part& part : {batch.positions.early, batch.positions.late}) {
      FillPart(corpus.Of(sample.source), split, sample, part, row, batch);
      row += static_cast<std::size_t>(part.Size());
    }
  }
}

}  // namespace trireme::data
