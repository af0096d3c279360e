// The GPU of a rank: the card, its queues, events and graphs, and memory that kernels borrow.
// Declared without CUDA's headers, for code that only passes it on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::device {

// Whose kernels compute attention. kAuto: cuDNN's where they can and are faster, else our own.
enum class AttentionKernels { kAuto, kCudnn, kOwn };

// What launchers need to know about a card, and what they borrow from it.
struct GpuContext {
  int device = 0;            // number among the cards visible to this process
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string address = {};  // on the PCI bus: "0000:41:00.0"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int shared_bytes = 0;           // most shared memory per thread block
  std::int64_t memory_bytes = 0;  // of the card
  void* queue = nullptr;          // cudaStream_t: computation
  void* input_queue = nullptr;    // cudaStream_t: copies of input, ahead of the computation
  // Device memory that launchers on `queue` may use within a call (partial sums), 256-byte aligned.
  std::byte* scratch = nullptr;
  std::int64_t scratch_bytes = 0;
  std::byte* workspace = nullptr;  // the same for the matrix library
  std::int64_t workspace_bytes = 0;
  void* bounce = nullptr;  // page-locked; copies of ordinary host memory pass through it
  std::int64_t bounce_bytes = 0;
  AttentionKernels attention = AttentionKernels::kAuto;  // run.attention
  bool deterministic = true;                             // run.deterministic
};
inline constexpr std::int64_t kGpuScratchBytes = std::int64_t{32} << 20;
inline constexpr std::int64_t kGpuWorkspaceBytes = std::int64_t{64} << 20;

// Sets environment variables that CUDA and NCCL read, unless the user has set them; does nothing
// without CUDA. Call it before anything that may start CUDA, MPI included.
void PrepareGpuEnvironment();

// Whether this program was built with CUDA.
bool GpuBuilt();
// Why no card can be used: "no CUDA device: the driver is not loaded"; "" if one can be used.
std::string WhyNoGpu();
// UUIDs of the cards (or parts of cards) that are visible to this process.
std::vector<std::string> GpuIds();
// "CUDA 13.0, driver for CUDA 13.0"; "" in a build without CUDA.
std::string GpuLibraries();

class Gpu {
 public:
  // Opens card `device` of those visible to this process, and makes it this thread's current card.
  // RunError if it cannot be opened.
  explicit Gpu(int device);
  // A planned card: has the name and numbers of `facts`, and scratch and workspace of
  // Kind::kPlanned, but no queues. Needs neither CUDA nor a card.
  explicit Gpu(const GpuContext& facts);
  ~Gpu();  // waits for its queues
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  const GpuContext& Context() const { return context_; }
  void Choose(AttentionKernels attention, bool deterministic) {
    context_.attention = attention;
    context_.deterministic = deterministic;
  }

 private:
  void AllocateScratch(Kind kind);

  GpuContext context_;
  Buffer scratch_, workspace_;
};

// Bytes of the card that are free or used by its file cache; 0 for CPU and planned streams.
std::int64_t FreeBytes(const Stream& stream);

// A moment in a queue. On the CPU and on a planned stream it happens as soon as it is recorded.
class Event {
 public:
  Event() = default;
  // timed: allows SecondsSince.
  explicit Event(const Stream& stream, bool timed = false);

  bool Made() const { return handle_ != nullptr; }  // false on the CPU
  void Record(void* queue);          // the moment when all work queued so far on `queue` is done
  void MakeWait(void* queue) const;  // work queued on `queue` from now on waits for the moment
  bool Happened() const;
  void Await() const;  // blocks the host until it has happened
  // Seconds from `earlier` to this event. Both must be timed and have happened.
  double SecondsSince(const Event& earlier) const;

 private:
  struct Delete {
    void operator()(void* event) const;
  };
  std::unique_ptr<void, Delete> handle_;
};

// Recorded work that one call queues again (a CUDA graph). On a planned stream nothing is recorded.
class Graph {
 public:
  // Work queued between Begin and End is recorded and not run. Meanwhile no memory may be allocated
  // and nothing awaited. Work on other queues is recorded if events connect it to the stream's
  // queue, in both directions.
  void Begin(const Stream& stream);
  void End(const Stream& stream);
  // Drops the recording, after an exception since Begin.
  void Abandon(const Stream& stream);
  bool Recorded() const { return handle_ != nullptr; }
  std::int64_t Nodes() const { return nodes_; }
  void Launch(const Stream& stream) const;

 private:
  struct Delete {
    void operator()(void* graph) const;
  };
  std::unique_ptr<void, Delete> handle_;
  std::int64_t nodes_ = 0;
};

}  // namespace trireme::device
