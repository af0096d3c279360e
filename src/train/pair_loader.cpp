// Loading of a step's pairs into entries.
#include "trireme/train/pair_loader.hpp"

#include <span>

namespace trireme::train {

PairLoader::PairLoader(const TrainingState& state, const data::PairFile& pairs)
    : pairs_(pairs),
      order_(pairs.Pairs(data::Split::kTrain), data::LengthsOf(pairs, data::Split::kTrain),
             state.Plan().pairs.value()),
      share_(state.Share()) {}

void PairLoader::Load(std::int64_t step, LoadedBatch& batch) {
  const data::PairBatchShape shape = order_.Shape(step);
  // A pair's place in the split, one epoch after the other.
  const std::int64_t before = step / order_.StepsPerEpoch() * pairs_.Pairs(data::Split::kTrain);
  batch.step = step;
  batch.staged.reset();
  order_.Fill(step, share_.Places(shape.pairs), places_);
  batch.count = static_cast<std::size_t>(share_.Entries(shape.pairs));
  if (batch.entries.size() < batch.count) batch.entries.resize(batch.count);
  for (std::size_t i = 0; i < batch.count; ++i) {
    data::Entry& entry = batch.entries[i];
    entry.sequences = entry.valid = entry.visible_keys = 0;
    const Part part = share_.Entry(shape.pairs, static_cast<std::int64_t>(i));
    if (part.Size() == 0) continue;
    const auto mine = std::span(places_).subspan(static_cast<std::size_t>(part.begin),
                                                 static_cast<std::size_t>(part.Size()));
    data::FillEntry(pairs_, data::Split::kTrain, mine, shape, before, entry);
    entry.group = share_.GroupOf(static_cast<std::int64_t>(i));
  }
}

}  // namespace trireme::train
