// Chooses between CPU, CUDA and a planned device: the only file in this folder that depends on
// whether CUDA was built. Without CUDA only a planned stream may have a GPU.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "allocate.hpp"
#include "cuda/backend.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::device {

namespace {
constexpr bool kCuda = TRIREME_CUDA != 0;
constexpr bool kCupti = TRIREME_CUPTI != 0;

void CopyHere(const void* from, void* to, std::int64_t bytes) {
  if (bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

// in: `from` is the host's memory, else `to` is.
void CopyNow(const Stream& stream, const void* from, void* to, std::int64_t bytes, bool in) {
  if (stream.Planned()) return;
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::Copy(*stream.gpu, from, to, bytes, in);
  }
  CopyHere(from, to, bytes);
}

// queue: which queue of GpuContext.
void StartCopy(const Stream& stream, void* const GpuContext::*queue, const void* from, void* to,
               std::int64_t bytes) {
  if (stream.Planned()) return;
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::StartCopy(stream.gpu->*queue, from, to, bytes);
  }
  CopyHere(from, to, bytes);
}

}  // namespace

void PrepareGpuEnvironment() {
  if constexpr (kCuda) cuda::PrepareEnvironment();
}

bool GpuBuilt() { return kCuda; }

std::string WhyNoGpu() {
  if constexpr (kCuda) return cuda::WhyNoGpu();
  return "this program was built without CUDA";
}

std::vector<std::string> GpuIds() {
  if constexpr (kCuda) return cuda::GpuIds();
  return {};
}

std::string GpuLibraries() {
  if constexpr (kCuda) return cuda::Libraries();
  return "";
}

void Gpu::AllocateScratch(Kind kind) {
  scratch_ = AllocateZeroed(kGpuScratchBytes, kind);
  workspace_ = AllocateZeroed(kGpuWorkspaceBytes, kind);
  context_.scratch = static_cast<std::byte*>(scratch_.get());
  context_.scratch_bytes = kGpuScratchBytes;
  context_.workspace = static_cast<std::byte*>(workspace_.get());
  context_.workspace_bytes = kGpuWorkspaceBytes;
}

Gpu::Gpu(int device) {
  if constexpr (kCuda) {
    cuda::Open(device, context_);
    AllocateScratch(Kind::kCuda);
    return;
  }
  throw RunError("GPU " + std::to_string(device) + " cannot be opened: " + WhyNoGpu());
}

Gpu::Gpu(const GpuContext& facts) : context_(facts) {
  context_.queue = nullptr;
  context_.input_queue = nullptr;
  context_.bounce = nullptr;
  AllocateScratch(Kind::kPlanned);
}

Gpu::~Gpu() {
  if constexpr (kCuda) cuda::Close(context_);
}

std::int64_t FreeBytes(const Stream& stream) {
  if constexpr (kCuda) {
    if (stream.Where() == Kind::kCuda) return cuda::FreeBytes();
  }
  return 0;
}

void* AllocateOn(Kind kind, std::int64_t bytes) {
  if constexpr (kCuda) {
    if (kind == Kind::kCuda) return cuda::AllocateZeroed(bytes);
  }
  throw RunError("memory of a GPU was asked for: " + WhyNoGpu(), "This is a bug in Trireme.");
}

void FreeOn(Kind kind, void* data, std::int64_t) {
  if constexpr (kCuda) {
    if (kind == Kind::kCuda) return cuda::Free(data);
  }
}

void FreePinned::operator()(void* data) const {
  if (kind == Kind::kPlanned) return;
  if constexpr (kCuda) {
    if (kind == Kind::kCuda) return cuda::FreePinned(data);
  }
  std::free(data);
}

PinnedBuffer AllocatePinned(std::int64_t bytes, Kind kind) {
  if (kind == Kind::kPlanned) return {PlannedAddress(bytes), FreePinned{kind}};
  if constexpr (kCuda) {
    if (kind == Kind::kCuda) return {cuda::AllocatePinned(bytes), FreePinned{kind}};
  }
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  PinnedBuffer buffer(std::calloc(size, 1), FreePinned{Kind::kCpu});
  if (!buffer)
    throw RunError("out of memory: a host buffer could not be allocated",
                   MemoryAdvice("Use fewer ranks on a node."));
  return buffer;
}

void CopyIn(const Stream& stream, const void* host, void* device, std::int64_t bytes) {
  CopyNow(stream, host, device, bytes, true);
}

void CopyOut(const Stream& stream, const void* device, void* host, std::int64_t bytes) {
  CopyNow(stream, device, host, bytes, false);
}

void StartCopyIn(const Stream& stream, const void* host, void* device, std::int64_t bytes) {
  StartCopy(stream, &GpuContext::queue, host, device, bytes);
}

void StartCopyOut(const Stream& stream, const void* device, void* host, std::int64_t bytes) {
  StartCopy(stream, &GpuContext::queue, device, host, bytes);
}

void StartInput(const Stream& stream, const void* host, void* device, std::int64_t bytes) {
  StartCopy(stream, &GpuContext::input_queue, host, device, bytes);
}

void CopyWithin(const Stream& stream, const void* from, void* to, std::int64_t bytes) {
  StartCopy(stream, &GpuContext::queue, from, to, bytes);
}

void Repeat(const Stream& stream, std::span<const std::byte> pattern, void* device,
            std::int64_t bytes) {
  std::int64_t filled = std::min(bytes, std::ssize(pattern));
  CopyIn(stream, pattern.data(), device, filled);
  auto* const begin = static_cast<std::byte*>(device);
  while (filled < bytes) {
    const std::int64_t more = std::min(filled, bytes - filled);
    CopyWithin(stream, begin, begin + filled, more);
    filled += more;
  }
}

void SetZero(const Stream& stream, void* data, std::int64_t bytes) {
  if (stream.Planned()) return LogPass(stream, static_cast<double>(bytes));
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::SetZero(stream.gpu->queue, data, bytes);
  }
  if (bytes > 0) std::memset(data, 0, static_cast<std::size_t>(bytes));
}

void Synchronise(const Stream& stream) {
  if constexpr (kCuda) {
    if (stream.Where() == Kind::kCuda) cuda::Synchronise(stream.gpu->queue);
  }
}

MaybeActivities RecordActivities(const Stream& stream, std::int64_t most) {
  if constexpr (kCupti) {
    if (stream.Where() == Kind::kCuda) return cuda::RecordActivities(*stream.gpu, most);
  }
  return {nullptr, kCupti ? "there is no GPU" : "the program was built without CUPTI's header"};
}

std::string ActivityLibrary() {
  if constexpr (kCupti) return cuda::ActivityLibrary();
  return kCuda ? "no CUPTI" : "";
}

Drain::~Drain() {
  if (std::uncaught_exceptions() > exceptions_) {
    if (give_up_) give_up_();
    return;
  }
  try {
    Synchronise(stream_);
    if constexpr (kCuda) {
      if (stream_.Where() == Kind::kCuda) cuda::Synchronise(stream_.gpu->input_queue);
    }
  } catch (const Error&) {  // an earlier call that waited has reported it
    return;
  }
}

ProfileRange::ProfileRange(const char* name) {
  if constexpr (kCuda) cuda::PushRange(name);
}

ProfileRange::~ProfileRange() {
  if constexpr (kCuda) cuda::PopRange();
}

Event::Event(const Stream& stream, bool timed) {
  if constexpr (kCuda) {
    if (stream.Where() == Kind::kCuda) handle_.reset(cuda::NewEvent(timed));
  }
}

void Event::Delete::operator()(void* event) const {
  if constexpr (kCuda) cuda::DeleteEvent(event);
}

void Event::Record(void* queue) {
  if constexpr (kCuda) {
    if (handle_) cuda::RecordEvent(handle_.get(), queue);
  }
}

void Event::MakeWait(void* queue) const {
  if constexpr (kCuda) {
    if (handle_) cuda::MakeWait(handle_.get(), queue);
  }
}

bool Event::Happened() const {
  if constexpr (kCuda) {
    if (handle_) return cuda::Happened(handle_.get());
  }
  return true;
}

void Event::Await() const {
  if constexpr (kCuda) {
    if (handle_) cuda::Await(handle_.get());
  }
}

double Event::SecondsSince(const Event& earlier) const {
  if constexpr (kCuda) {
    if (handle_) return cuda::SecondsBetween(earlier.handle_.get(), handle_.get());
  }
  return 0;
}

void Graph::Delete::operator()(void* graph) const {
  if constexpr (kCuda) cuda::DeleteGraph(graph);
}

void Graph::Begin(const Stream& stream) {
  if (stream.Planned()) return;
  if constexpr (kCuda) cuda::BeginGraph(stream.gpu->queue);
}

void Graph::End(const Stream& stream) {
  if (stream.Planned()) return;
  if constexpr (kCuda) handle_.reset(cuda::EndGraph(stream.gpu->queue, nodes_));
}

void Graph::Abandon(const Stream& stream) {
  if (stream.Planned()) return;
  if constexpr (kCuda) cuda::AbandonGraph(stream.gpu->queue);
}

void Graph::Launch(const Stream& stream) const {
  if (stream.Planned()) return;
  if constexpr (kCuda) cuda::LaunchGraph(handle_.get(), stream.gpu->queue);
}

}  // namespace trireme::device
