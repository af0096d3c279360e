// Loading of a step's windows into entries.
#include "trireme/training/batch_loader.hpp"

namespace trireme::training {

BatchLoader::BatchLoader(const TrainingState& state, const data::Corpus& tokens)
    : tokens_(tokens),
      samples_(state.Plan().samples),
      sampler_(samples_),
      share_(state.Share()),
      positions_(state.Net().LocalPlan().positions),
      document_mask_(state.Plan().model.document_mask),
      length_(state.Plan().model.length) {}

void BatchLoader::Move(const data::Origin& origin) {
  samples_.origin = origin;
  sampler_ = data::Sampler(samples_);
}

void BatchLoader::Load(std::int64_t step, LoadedBatch& batch) const {
  const std::int64_t windows = sampler_.BatchSize(step);
  batch.step = step;
  batch.staged.reset();
  sampler_.Fill(step, share_.Places(windows), batch.windows);
  const std::span<const data::Sample> mine(batch.windows);
  batch.count = static_cast<std::size_t>(share_.Entries(windows));
  if (batch.entries.size() < batch.count) batch.entries.resize(batch.count);
  for (std::size_t i = 0; i < batch.count; ++i) {
    data::Entry& entry = batch.entries[i];
    entry.sequences = entry.valid = entry.visible_keys = 0;
    const Part part = share_.Entry(windows, static_cast<std::int64_t>(i));
    if (part.Size() == 0) continue;  // the schedule or other ranks want more entries than it has
    const auto windows_of_entry =
        mine.subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.Size()));
    data::ReadWindows(tokens_, data::Split::kTrain, windows_of_entry, batch.read);
    data::FillEntry(batch.read, windows_of_entry, length_, entry, positions_, document_mask_);
    entry.group = share_.GroupOf(static_cast<std::int64_t>(i));
  }
}

}  // namespace trireme::training
