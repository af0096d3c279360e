// Recorder: the slices of one rank, in a bounded amount of memory. Code that may be recorded holds
// a pointer to it, which is null unless a timeline is being recorded.
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

// What time is spent on. Slices on the host's queue nest; a moment counts for its innermost slice.
enum class SliceCategory : std::uint8_t {
  kStep,  // part of a step that is in no other category
  kCompute,
  kData,
  kWait,
  kTransfer,
  kCheckpoint,
  kValidation,
  kKernel  // on a GPU's queues, in addition to the slices of its tasks
};
inline constexpr int kCategories = 8;
const char* NameOf(SliceCategory category);  // "compute"

enum class Phase : std::uint8_t {
  kNone,
  kForward,
  kBackward,
  kInputGradient,   // of a backward pass that is divided into two tasks
  kWeightGradient,  // its second task
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
  kTask,  // of a pipeline's schedule: one phase of a micro-batch
  kLayer,
  kEmbedding,
  kHead,
  kRecompute,
  kTransfer,
  kWait,
  kBubble,  // waiting for another stage's result
  kCheckpoint,
  kValidation,
  kHistograms
};
inline constexpr int kNames = 20;
const char* NameOf(SliceName name);  // "load batch"

// Queues of a rank, each shown as a thread. Slices of kTransfers and kCheckpointFiles may overlap;
// then they take several threads.
enum class SliceQueue : std::uint8_t { kHost, kGpu, kTransfers, kCheckpointFiles };

inline constexpr std::int8_t kNoGroup = -1;

struct Slice {
  double begin = 0, end = 0;  // on the rank's clock Seconds()
  std::int64_t bytes = 0;     // of a transfer
  std::int64_t sequence = 0;  // of a message: its number, from 1, for its peer and tag; 0: unknown
  std::int32_t step = 0;      // from 1
  std::int32_t layer = -1, micro_batch = -1, chunk = -1;
  std::int32_t peer = -1, tag = -1;  // of a message; peer: rank in the group
  SliceName name = SliceName::kStep;
  SliceCategory category = SliceCategory::kStep;
  Phase phase = Phase::kNone;
  SliceQueue queue = SliceQueue::kHost;
  std::int8_t group = kNoGroup, transfer = -1;  // comm::Group, comm::Transfer
};
static_assert(std::is_trivially_copyable_v<Slice>);  // sent between ranks as it is

// Kernel: one activity of a card in a timeline, with the host's slice in which it was queued.

struct Kernel {
  double begin = 0, end = 0;  // on the rank's clock Seconds()
  std::int64_t bytes = 0;     // of a copy or a fill
  std::int32_t step = 0, layer = -1, micro_batch = -1, chunk = -1;
  std::int32_t name = -1;   // index into the rank's kernel names
  std::uint32_t graph = 0;  // CUPTI's number of the graph that contains it; 0: none
  std::int16_t queue = 0;   // 0: computation, 1: input, then others
  device::Activity::Kind kind = device::Activity::Kind::kKernel;
  SliceName task = SliceName::kStep;  // innermost slice of the host when it was queued
  Phase phase = Phase::kNone;
  bool tagged = false;  // whether its slice is known; if not, only `step` is
};
static_assert(std::is_trivially_copyable_v<Kernel>);  // sent between ranks as it is

// Short name of a kernel, from its symbol: demangled, without result, arguments and name spaces, at
// most 80 bytes: "LayerNorm<float, 256>".
std::string ShortName(const std::string& symbol);

// May be used by one thread only.
class Recorder {
 public:
  // Takes memory for `most` slices. On a GPU, slices of its queue come from events, and its kernels
  // from `activities`; null: kernels are not recorded.
  Recorder(std::int64_t most, const device::Stream& stream,
           std::unique_ptr<device::Activities> activities = nullptr);

  // Adds a slice that has ended, cut to this object's lifetime, with the current step and
  // micro-batch. Leaves it out if there is no room.
  void Add(Slice slice);
  void SetStep(std::int64_t step);
  // Sets the task of the following slices; -1: none.
  void SetTask(int micro_batch, int chunk) {
    micro_batch_ = micro_batch;
    chunk_ = chunk;
  }

  bool OnGpu() const { return stream_.Where() == device::Kind::kCuda; }
  // Whether there is a GPU and room for a slice of its queue; without room, counts it as left out.
  bool TakesQueued();
  // Marks a moment in the GPU's queue, for AddQueued.
  std::size_t Mark();
  // Adds a slice of the GPU's queue, between two marked moments; Settle will find its times.
  void AddQueued(const Slice& slice, std::size_t begin, std::size_t end);
  // Sets the times of a slice from two timed events of the GPU, which have happened.
  void Place(Slice& slice, const device::Event& begin, const device::Event& end) const;
  // Work that is queued between Enter and Leave belongs to this slice. Calls nest.
  void Enter(const Slice& slice);
  void Leave();
  bool TellsKernels() const { return activities_ != nullptr; }
  // Waits for the GPU's queue, reads the times of queued slices, and compares the clocks again.
  void Settle();
  // Settles and ends the recording of kernels.
  void Finish();
  // Largest possible difference between the clocks of host and GPU, seconds.
  double GpuClockError() const { return gpu_clock_error_; }

  std::span<const Slice> Slices() const { return slices_; }
  std::int64_t LeftOut() const { return left_out_; }          // slices that found no room
  std::int64_t FirstStepLeftOut() const { return full_at_; }  // 0: none

  // Valid after Finish.
  struct Kernels {
    std::vector<Kernel> all;
    std::vector<std::string> names;  // short; several kernels may share one
    double clock_error = 0;          // seconds
    std::int64_t left_out = 0;       // number for which there was no room
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
  Slice Stamped(Slice slice) const;  // with the current step and task
  void LeaveOut(std::int64_t step);
  void CompareClocks();
  std::int32_t StepAt(double time) const;
  Kernel KernelOf(const device::Activity& activity) const;

  std::size_t most_;
  double since_;  // creation, on the clock of Seconds()
  device::Stream stream_;
  std::vector<Slice> slices_;
  std::int64_t left_out_ = 0, full_at_ = 0;
  std::int32_t step_ = 0, micro_batch_ = -1, chunk_ = -1;

  std::vector<device::Event> marks_;  // reused after each Settle
  std::size_t marked_ = 0;
  std::vector<Queued> queued_;
  device::Event origin_;    // a moment in the queue
  double origin_time_ = 0;  // the same moment on the clock of Seconds()
  double gpu_clock_error_ = 0;

  std::unique_ptr<device::Activities> activities_;
  std::vector<Slice> tagged_;        // [tag - 1]: the slice with that tag, without its times
  std::vector<std::uint64_t> open_;  // tags of the slices that are open
  std::vector<std::pair<double, std::int32_t>> steps_;  // (begin, step), ascending
  Kernels kernels_;
};

// Records a slice on the host's queue for its lifetime, and one on the GPU's queue for the work
// queued meanwhile. recorder null: does nothing.
class Scope {
 public:
  struct What {
    SliceName name = SliceName::kStep;
    SliceCategory category = SliceCategory::kCompute;
    Phase phase = Phase::kNone;
    std::int32_t layer = -1;
    bool queues = false;  // whether it queues work for the GPU
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
