// Shares of a batch: functions of the batch's size that agree on every rank.
#include "trireme/train/batch_share.hpp"

#include <algorithm>

namespace trireme::train {

std::int64_t LeavesOfGroup(std::int64_t batch, const parallel::Canonical& canonical) {
  return CeilDivide(CeilDivide(batch, canonical.leaf), canonical.data_groups);
}

namespace {

// A data rank's places in the batch with run.canonical; they may reach beyond the batch's end.
Part CanonicalShare(std::int64_t batch, int rank, int data_ranks,
                    const parallel::Canonical& canonical) {
  const std::int64_t groups = canonical.data_groups / data_ranks;
  const std::int64_t size = groups * LeavesOfGroup(batch, canonical) * canonical.leaf;
  return {rank * size, (rank + 1) * size};
}

}  // namespace

std::int64_t LargestShare(std::int64_t batch, int data_ranks,
                          const parallel::Canonical& canonical) {
  if (!canonical.On()) return CeilDivide(batch, data_ranks);
  return std::min(batch, CanonicalShare(batch, 0, data_ranks, canonical).end);
}

std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch,
                          const parallel::Canonical& canonical) {
  return CeilDivide(LargestShare(batch, data_ranks, canonical), micro_batch);
}

Part BatchShare::Places(std::int64_t windows) const {
  if (!canonical.On()) return PartOf(windows, rank, ranks);
  return CanonicalShare(batch, rank, ranks, canonical);
}

std::int64_t BatchShare::Count(std::int64_t windows) const {
  const Part share = Places(windows);
  return std::max<std::int64_t>(0, std::min(share.end, windows) - share.begin);
}

std::int64_t BatchShare::Entries(std::int64_t windows) const {
  // Canonical shares are cut from the largest batch; smaller batches fill them from the front.
  const std::int64_t most =
      alike ? std::min(windows, LargestShare(canonical.On() ? batch : windows, ranks, canonical))
            : Count(windows);
  const std::int64_t count = CeilDivide(most, micro_batch * leaves);
  return leaves * parallel::PaddedMicroBatches(pipeline, static_cast<int>(count));
}

Part BatchShare::Entry(std::int64_t windows, std::int64_t entry) const {
  const std::int64_t all = Count(windows), begin = std::min(all, entry * micro_batch);
  return {begin, std::min(all, begin + micro_batch)};
}

std::int64_t BatchShare::GroupOf(std::int64_t entry) const {
  return canonical.On() ? entry / LeavesOfGroup(batch, canonical) : entry;
}

}  // namespace trireme::train
