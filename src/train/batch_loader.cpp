// Loads a step's windows or pairs into entries.
#include "trireme/train/batch_loader.hpp"

#include <algorithm>

namespace trireme::train {

namespace {

// Sets the lengths of an entry of pairs.
void SetLengths(const TrainingState& state, const StepShape& step, data::Entry& entry) {
  const std::int64_t tokens = state.Plan().model.tokens;
  if (step.target_length > 0) {
    entry.source_length = step.source_length;
    entry.length = step.target_length;
  } else {
    if (tokens > 0) {
      entry.length = std::clamp<std::int64_t>(tokens / step.sequences, 1, entry.length);
    }
    entry.source_length = entry.length;
  }
  entry.positions = PositionsOf(entry.length, 0, 1);
}

// Cuts this rank's share of a batch of `all` windows or pairs into entries, and calls fill(entry,
// part of the share) for those that are not empty.
template <typename Fill>
void FillEntries(const BatchShare& share, std::int64_t all, LoadedBatch& batch, const Fill& fill) {
  batch.count = static_cast<std::size_t>(share.Entries(all));
  if (batch.entries.size() < batch.count) batch.entries.resize(batch.count);
  for (std::size_t i = 0; i < batch.count; ++i) {
    data::Entry& entry = batch.entries[i];
    entry.sequences = entry.valid = entry.visible_keys = 0;
    const Part part = share.Entry(all, static_cast<std::int64_t>(i));
    // Entries beyond the share are empty; the schedule or other ranks may need them.
    if (part.Size() == 0 || batch.unread) continue;
    fill(entry, part);
    entry.group = share.GroupOf(static_cast<std::int64_t>(i));
    entry.step = batch.step;
  }
}

}  // namespace

std::vector<data::Entry> BlankEntries(const TrainingState& state, const StepShape& step) {
  const BatchShare share = state.Share();
  std::vector<data::Entry> entries(static_cast<std::size_t>(share.Entries(step.sequences)));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    data::Entry& entry = entries[i];
    entry.positions = state.Net().LocalPlan().positions;
    entry.length = entry.positions.Count();
    entry.sequences = share.Entry(step.sequences, static_cast<std::int64_t>(i)).Size();
    if (state.Plan().options.pairs && entry.sequences > 0) SetLengths(state, step, entry);
    entry.group = share.GroupOf(static_cast<std::int64_t>(i));
  }
  return entries;
}

BatchLoader::BatchLoader(const TrainingState& state, const data::Corpus& tokens)
    : sampler_(state.Plan().options.samples),
      share_(state.Share()),
      windows_(
          tokens, data::Split::kTrain, state.Grid().Replica(),
          [this](std::int64_t step, std::vector<data::Sample>& samples) {
            sampler_.Fill(step, share_.Places(sampler_.BatchSize(step)), samples);
            return true;
          },
          state.Plan().model.document_mask),
      positions_(state.Net().LocalPlan().positions),
      document_mask_(state.Plan().model.document_mask),
      length_(state.Plan().model.length) {}

void BatchLoader::Move(const data::Origin& origin) {
  windows_.Change([&] { sampler_ = sampler_.From(origin); });
}

void BatchLoader::Load(std::int64_t step, LoadedBatch& batch) {
  const std::int64_t windows = sampler_.BatchSize(step);
  batch.step = step;
  batch.staged.reset();
  const data::Turn mine = windows_.Take(step);
  batch.unread = windows_.Failed();
  FillEntries(share_, windows, batch, [&](data::Entry& entry, const Part& part) {
    data::FillEntry(mine.Of(part), length_, entry, positions_, document_mask_);
  });
}

PairLoader::PairLoader(const TrainingState& state, const data::PairFile& pairs)
    : pairs_(pairs),
      order_(pairs.Pairs(data::Split::kTrain), data::LengthsOf(pairs, data::Split::kTrain),
             state.Plan().options.pairs.value()),
      share_(state.Share()) {}

void PairLoader::Load(std::int64_t step, LoadedBatch& batch) {
  const data::PairBatchShape shape = order_.Shape(step);
  // Pairs in the epochs before this step's.
  const std::int64_t before = step / order_.StepsPerEpoch() * pairs_.Pairs(data::Split::kTrain);
  batch.step = step;
  batch.staged.reset();
  order_.Fill(step, share_.Places(shape.pairs), places_);
  FillEntries(share_, shape.pairs, batch, [&](data::Entry& entry, const Part& part) {
    const auto mine = std::span(places_).subspan(static_cast<std::size_t>(part.begin),
                                                 static_cast<std::size_t>(part.Size()));
    data::FillEntry(pairs_, data::Split::kTrain, mine, shape, before, entry);
  });
}

}  // namespace trireme::train
