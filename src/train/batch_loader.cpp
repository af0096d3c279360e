// Loading of a step's windows into entries.
#include "trireme/train/batch_loader.hpp"

namespace trireme::train {

BatchLoader::BatchLoader(const TrainingState& state, const data::Corpus& tokens)
    : samples_(state.Plan().samples),
      sampler_(samples_),
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
  windows_.Change([&] {
    samples_.origin = origin;
    sampler_ = data::Sampler(samples_);
  });
}

void BatchLoader::Load(std::int64_t step, LoadedBatch& batch) {
  const std::int64_t windows = sampler_.BatchSize(step);
  batch.step = step;
  batch.staged.reset();
  sampler_.Fill(step, share_.Places(windows), batch.windows);
  const std::span<const data::Sample> mine(batch.windows);
  const std::span<const data::Window> read = windows_.Take(step);
  batch.unread = windows_.Failed();
  batch.count = static_cast<std::size_t>(share_.Entries(windows));
  if (batch.entries.size() < batch.count) batch.entries.resize(batch.count);
  for (std::size_t i = 0; i < batch.count; ++i) {
    data::Entry& entry = batch.entries[i];
    entry.sequences = entry.valid = entry.visible_keys = 0;
    const Part part = share_.Entry(windows, static_cast<std::int64_t>(i));
    // The schedule or other ranks may want more entries than there are.
    if (part.Size() == 0 || batch.unread) continue;
    const auto first = static_cast<std::size_t>(part.begin);
    const auto count = static_cast<std::size_t>(part.Size());
    data::FillEntry(read.subspan(first, count), mine.subspan(first, count), length_, entry,
                    positions_, document_mask_);
    entry.group = share_.GroupOf(static_cast<std::int64_t>(i));
  }
}

}  // namespace trireme::train
