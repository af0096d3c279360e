// BlankEntries: sizes from the rank's share of a batch.
#include "trireme/training/blank_batch.hpp"

#include <algorithm>

namespace trireme::training {

std::vector<data::Entry> BlankEntries(const TrainingState& state, std::int64_t windows) {
  const BatchShare share = state.Share();
  std::vector<data::Entry> entries(static_cast<std::size_t>(share.Entries(windows)));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    data::Entry& entry = entries[i];
    entry.positions = state.Net().LocalPlan().positions;
    entry.length = entry.positions.Count();
    entry.sequences = share.Entry(windows, static_cast<std::int64_t>(i)).Size();
    if (state.Plan().pairs && entry.sequences > 0) {
      // A step with the most pairs, whose texts are as long as the limit on tokens allows.
      const std::int64_t tokens = state.Plan().model.tokens;
      if (tokens > 0) entry.length = std::clamp<std::int64_t>(tokens / windows, 1, entry.length);
      entry.source_length = entry.length;
      entry.positions = PositionsOf(entry.length, 0, 1);
    }
    entry.group = share.GroupOf(static_cast<std::int64_t>(i));
  }
  return entries;
}

}  // namespace trireme::training
