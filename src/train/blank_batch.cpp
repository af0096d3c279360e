// BlankEntries: sizes from the rank's share of a batch.
#include "trireme/train/blank_batch.hpp"

#include <algorithm>

namespace trireme::train {

namespace {

// Gives an entry the lengths of the step's texts.
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

}  // namespace

std::vector<data::Entry> BlankEntries(const TrainingState& state, const StepShape& step) {
  const BatchShare share = state.Share();
  std::vector<data::Entry> entries(static_cast<std::size_t>(share.Entries(step.sequences)));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    data::Entry& entry = entries[i];
    entry.positions = state.Net().LocalPlan().positions;
    entry.length = entry.positions.Count();
    entry.sequences = share.Entry(step.sequences, static_cast<std::int64_t>(i)).Size();
    if (state.Plan().pairs && entry.sequences > 0) SetLengths(state, step, entry);
    entry.group = share.GroupOf(static_cast<std::int64_t>(i));
  }
  return entries;
}

}  // namespace trireme::train
