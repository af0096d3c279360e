// The GPU of a rank: which card, its queues, and the memory that kernels borrow. Declared without
// CUDA's headers, for code that only passes it on; nothing of CUDA is needed where it is not built.
#ifndef TRIREME_DEVICE_GPU_HPP_
#define TRIREME_DEVICE_GPU_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::device {

// What a launcher needs to know of the GPU behind its stream.
struct GpuContext {
  int device = 0;            // number among those that this process sees
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int shared_bytes = 0;           // most shared memory a block can ask for
  std::int64_t memory_bytes = 0;  // of the card
  void* queue = nullptr;          // cudaStream_t: the computation
  void* input_queue = nullptr;    // cudaStream_t: copies of input, ahead of the computation
  // Device memory for launchers on `queue`: partial sums that no later call reads. 256-byte
  // aligned.
  std::byte* scratch = nullptr;
  std::int64_t scratch_bytes = 0;
  std::byte* workspace = nullptr;  // likewise, of the matrix library
  std::int64_t workspace_bytes = 0;
  void* bounce = nullptr;  // page-locked host memory, for copies of host memory that is not
  std::int64_t bounce_bytes = 0;
};
inline constexpr std::int64_t kGpuScratchBytes = std::int64_t{32} << 20;
inline constexpr std::int64_t kGpuWorkspaceBytes = std::int64_t{64} << 20;

// What CUDA and NCCL have to find in the environment, as far as the user has not decided; nothing
// without CUDA. Before anything that may start CUDA, MPI among it.
void PrepareGpuEnvironment();

// Whether this program was built with CUDA; where it was run without a card that it can use, why
// ("" where there is one): "no CUDA device: the driver is not loaded".
bool GpuBuilt();
std::string WhyNoGpu();
// Those that this process sees, by what names a card (or a part of one) whatever its number here.
std::vector<std::string> GpuIds();
std::int64_t FreeBytes(const Stream& stream);  // of the card's memory, now
// "CUDA 13.0, driver for CUDA 13.0"; "" where not built.
std::string GpuLibraries();

class Gpu {
 public:
  // Opens card `device` of those that this process sees: it is the one of this thread from now on.
  explicit Gpu(int device);
  ~Gpu();  // waits for its queues
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  const GpuContext& Context() const { return context_; }

 private:
  GpuContext context_;
  Buffer scratch_, workspace_;
};

// A moment in a queue. On the CPU everything has happened when it is recorded.
class Event {
 public:
  Event() = default;
  // timed: Seconds() may be asked for.
  explicit Event(const Stream& stream, bool timed = false);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  void Record(void* queue);          // of GpuContext; behind what was queued there
  void MakeWait(void* queue) const;  // what is queued there from now on comes behind this moment
  bool Happened() const;
  void Await() const;  // the host waits
  // From `earlier` to this, both of timed events that have happened.
  double SecondsSince(const Event& earlier) const;

 private:
  void* handle_ = nullptr;
};

// What was queued between Begin and End, to be queued again with one call (a CUDA graph).
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();
  // Nothing that is queued runs; no memory is allocated and nothing is awaited in between. Other
  // queues take part as far as events lead there and back.
  void Begin(const Stream& stream);
  void End(const Stream& stream);
  // Behind an exception in between: what was recorded is dropped.
  void Abandon(const Stream& stream);
  bool Recorded() const { return handle_ != nullptr; }
  std::int64_t Nodes() const { return nodes_; }
  void Launch(const Stream& stream) const;

 private:
  void* handle_ = nullptr;
  std::int64_t nodes_ = 0;
};

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_GPU_HPP_
