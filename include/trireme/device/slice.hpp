// A slice of a timeline: something that a rank did from one moment to another.
#ifndef TRIREME_DEVICE_SLICE_HPP_
#define TRIREME_DEVICE_SLICE_HPP_

#include <cstdint>
#include <type_traits>

namespace trireme::device {

// Use of the time. Slices on the host's queue nest, and each moment counts for its innermost slice.
enum class SliceCategory : std::uint8_t {
  kStep,  // of a step, in no other category
  kCompute,
  kData,
  kWait,
  kTransfer,
  kCheckpoint,
  kValidation,
  kKernel  // of a GPU's queues, beside the slices of its tasks
};
inline constexpr int kCategories = 8;
const char* NameOf(SliceCategory category);  // "compute"

enum class Phase : std::uint8_t {
  kNone,
  kForward,
  kBackward,
  kInputGradient,   // of a backward pass in two tasks
  kWeightGradient,  // likewise
  kRecompute,
  kUpdate,
  kEvaluate
};
inline constexpr int kPhases = 8;
const char* NameOf(Phase phase);  // "weight gradient"; "" for kNone

enum class SliceName : std::uint8_t {
  kStep,
  kLoadBatch,
  kGradients,
  kAwaitGradients,
  kSumGradients,
  kCountTargets,
  kGradientNorm,
  kAgreement,
  kUpdate,
  kTask,  // of a pipeline's schedule: a phase of a micro-batch
  kLayer,
  kEmbedding,
  kHead,
  kRecompute,
  kTransfer,
  kWait,
  kBubble,  // wait for another stage's result
  kCheckpoint,
  kValidation,
  kHistograms
};
inline constexpr int kNames = 20;
const char* NameOf(SliceName name);  // "load batch"

// Queues of a rank, a thread each in the picture. kTransfers and kCheckpointFiles: whose slices may
// overlap, and then take more threads.
enum class SliceQueue : std::uint8_t { kHost, kGpu, kTransfers, kCheckpointFiles };

inline constexpr std::int8_t kNoGroup = -1;

struct Slice {
  double begin = 0, end = 0;  // of Seconds() on the rank
  std::int64_t bytes = 0;     // of a transfer
  std::int64_t sequence = 0;  // of a message: the how-manieth with its peer and tag; 0: not known
  std::int32_t step = 0;      // counted from 1
  std::int32_t layer = -1, micro_batch = -1, chunk = -1;
  std::int32_t peer = -1, tag = -1;  // of a message; peer: rank in the group
  SliceName name = SliceName::kStep;
  SliceCategory category = SliceCategory::kStep;
  Phase phase = Phase::kNone;
  SliceQueue queue = SliceQueue::kHost;
  std::int8_t group = kNoGroup, transfer = -1;  // comm::Group, comm::Transfer
};
static_assert(std::is_trivially_copyable_v<Slice>);  // travels between ranks as it is

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_SLICE_HPP_
