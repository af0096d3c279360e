// BlankEntries: sizes from the rank's share of a batch.
#include "trireme/training/blank_batch.hpp"

namespace trireme::training {

std::vector<data::Entry> BlankEntries(const TrainingState& state, std::int64_t windows) {
  const BatchShare share = state.Share();
  std::vector<data::Entry> entries(static_cast<std::size_t>(share.Entries(windows)));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    data::Entry& entry = entries[i];
    entry.positions = state.Net().LocalPlan().positions;
    entry.length = entry.positions.Count();
    entry.sequences = share.Entry(windows, static_cast<std::int64_t>(i)).Size();
    entry.group = share.GroupOf(static_cast<std::int64_t>(i));
  }
  return entries;
}

}  // namespace trireme::training
