// Choice of the micro-batch where the deck leaves it to the program.
#include "micro_batch.hpp"

#include <algorithm>

#include "trireme/base/partition.hpp"

namespace trireme::train {

namespace {

// Rows enough for the products to run at full speed, few enough for a layer's activations to stay
// small.
constexpr std::int64_t kTokens = 2048, kGpuTokens = 16384;

// Micro-batches that keep a pipeline's bubble, (P - 1) / (M + P - 1), under a fifth.
constexpr std::int64_t kPerStage = 4;

}  // namespace

std::int64_t SuitableMicroBatch(std::int64_t length, bool on_gpu) {
  return std::max<std::int64_t>(1, (on_gpu ? kGpuTokens : kTokens) / length);
}

std::int64_t MicroBatchChoice::Choose() const {
  if (given != 0) return std::min(given, share);
  const std::int64_t all = CeilDivide(share, grain);  // in grains from here on
  const auto sequences = [&](std::int64_t grains) { return std::min(grains * grain, share); };
  std::int64_t wanted = std::clamp<std::int64_t>(suitable / grain, 1, all);
  if (pipeline.stages == 1) return sequences(wanted);
  wanted = std::clamp<std::int64_t>(all / (kPerStage * pipeline.stages), 1, wanted);
  if (pipeline.kind != parallel::ScheduleKind::kInterleaved) return sequences(wanted);
  const auto fits = [&](std::int64_t grains) {
    return CeilDivide(all, grains) % pipeline.stages == 0;
  };
  for (std::int64_t fewer = wanted; fewer >= 1; --fewer) {
    if (fits(fewer)) return sequences(fewer);
  }
  for (std::int64_t more = wanted + 1; more <= all; ++more) {
    if (fits(more)) return sequences(more);
  }
  return sequences(wanted);  // none fits: model::CheckMicroBatches says so
}

}  // namespace trireme::train
