// Recorder: the slices of one rank in memory of a fixed bound. Code that may be recorded holds a
// pointer, which is null unless a timeline is being recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/device/activities.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::device {

// A slice of a timeline: something that a rank did from one moment to another.

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

// Kernel: one piece of a card's work in a timeline, with the slice of the host under which it was
// queued.

struct Kernel {
  double begin = 0, end = 0;  // of Seconds() on the rank
  std::int64_t bytes = 0;     // of a copy or a fill
  std::int32_t step = 0, layer = -1, micro_batch = -1, chunk = -1;
  std::int32_t name = -1;   // index of the rank's names
  std::uint32_t graph = 0;  // part of a recorded graph, by CUPTI's number; 0: queued by itself
  std::int16_t queue = 0;   // 0: the computation's, 1: the input's, then others
  device::Activity::Kind kind = device::Activity::Kind::kKernel;
  SliceName task = SliceName::kStep;  // innermost slice of the host around the call that queued it
  Phase phase = Phase::kNone;
  bool tagged = false;  // whether that is known, and `layer` to `chunk`; else `step` is by the time
};
static_assert(std::is_trivially_copyable_v<Kernel>);  // travels between ranks as it is

// A kernel's name as a reader wants it, from its symbol: demangled, without result, arguments and
// name spaces, at most 80 bytes: "LayerNorm<float, 256>".
std::string ShortName(const std::string& symbol);

// Used by one thread.
class Recorder {
 public:
  // Takes memory for `most` slices. On a GPU, slices of its queue come from events there, and its
  // kernels from `activities`; null: they are not told apart.
  Recorder(std::int64_t most, const device::Stream& stream,
           std::unique_ptr<device::Activities> activities = nullptr);

  // Adds a complete slice, as far as it lies in this object's life, with the step and the
  // micro-batch that are set, unless there is no room left.
  void Add(Slice slice);
  void SetStep(std::int64_t step);
  // Task of the slices to come; -1: none.
  void SetTask(int micro_batch, int chunk) {
    micro_batch_ = micro_batch;
    chunk_ = chunk;
  }

  bool OnGpu() const { return stream_.Where() == device::Kind::kCuda; }
  // Whether there is a GPU, and room for one more slice of its queue; else the slice is left out.
  bool TakesQueued();
  // A moment in the GPU's queue, for AddQueued.
  std::size_t Mark();
  // A slice of the GPU's queue between two moments; its times become known in Settle.
  void AddQueued(const Slice& slice, std::size_t begin, std::size_t end);
  // Sets the times of a slice from two timed events of the GPU, which have happened.
  void Place(Slice& slice, const device::Event& begin, const device::Event& end) const;
  // Work that is queued between the two calls, which nest, is of this slice.
  void Enter(const Slice& slice);
  void Leave();
  bool TellsKernels() const { return activities_ != nullptr; }
  // Waits for the GPU's queue, reads the times of what was queued, and compares the clocks anew.
  void Settle();
  // Settles, and ends the recording of kernels.
  void Finish();
  // Largest difference that there may be between the clocks of host and GPU, seconds.
  double GpuClockError() const { return gpu_clock_error_; }

  std::span<const Slice> Slices() const { return slices_; }
  std::int64_t LeftOut() const { return left_out_; }          // slices that found no room
  std::int64_t FirstStepLeftOut() const { return full_at_; }  // 0: none

  // After Finish.
  struct Kernels {
    std::vector<Kernel> all;
    std::vector<std::string> names;  // short; two kernels may have the same
    double clock_error = 0;          // seconds
    std::int64_t left_out = 0;       // found no room
    std::int64_t first_step_left_out = 0;
    std::string library;
  };
  const Kernels& AllKernels() const { return kernels_; }

 private:
  struct Queued {
    Slice slice;
    std::size_t begin, end;
  };
  void Put(const Slice& slice);
  Slice Stamped(Slice slice) const;  // with the step and the task that are set
  void LeaveOut(std::int64_t step);
  void CompareClocks();
  std::int32_t StepAt(double time) const;
  Kernel KernelOf(const device::Activity& activity) const;

  std::size_t most_;
  double since_;  // of Seconds()
  device::Stream stream_;
  std::vector<Slice> slices_;
  std::int64_t left_out_ = 0, full_at_ = 0;
  std::int32_t step_ = 0, micro_batch_ = -1, chunk_ = -1;

  std::vector<device::Event> marks_;  // used again after each Settle
  std::size_t marked_ = 0;
  std::vector<Queued> queued_;
  device::Event origin_;    // a moment in the queue, at
  double origin_time_ = 0;  // of Seconds()
  double gpu_clock_error_ = 0;

  std::unique_ptr<device::Activities> activities_;
  std::vector<Slice> tagged_;                           // [tag - 1]: the slice, without its times
  std::vector<std::uint64_t> open_;                     // tags of the slices around
  std::vector<std::pair<double, std::int32_t>> steps_;  // beginnings, ascending
  Kernels kernels_;
};

// Records a slice on the host's queue for as long as it lives, and one on the GPU's queue for the
// work queued meanwhile. recorder: null: does nothing.
class Scope {
 public:
  struct What {
    SliceName name = SliceName::kStep;
    SliceCategory category = SliceCategory::kCompute;
    Phase phase = Phase::kNone;
    std::int32_t layer = -1;
    bool queues = false;  // work for the GPU
  };
  Scope(Recorder* recorder, const What& what) : recorder_(recorder) {
    if (recorder_ != nullptr) Begin(what);
  }
  ~Scope() {
    if (recorder_ != nullptr) End();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  void Begin(const What& what);
  void End();
  Slice SliceOf() const;  // without times
  Recorder* recorder_;
  What what_;
  double begin_ = 0;
  std::size_t mark_ = 0;
};

}  // namespace trireme::device
