// CUDA's part of the device layer: cards and their environment, memory and copies, queues, events,
// recorded graphs, and ranges for profilers.
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "backend.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/in_threads.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::device::cuda {

namespace {

constexpr std::size_t kBounceBytes = std::size_t{16} << 20;  // for copies of ordinary host memory

std::size_t Size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }
cudaStream_t Stream(void* queue) { return static_cast<cudaStream_t>(queue); }
cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }

std::string AdviceFor(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return "Lower data.micro_batch, set model.recompute or grid.sharding, or use more GPUs.";
    case cudaErrorNoKernelImageForDevice:
      return "Build with this card's architecture in CMAKE_CUDA_ARCHITECTURES.";
    case cudaErrorInsufficientDriver:
      return "The driver is older than the CUDA this program was built with.";
    default:
      return "";
  }
}

std::string Version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

// Whether a launcher (Open MPI, PMI of MPICH and Cray, Slurm, PMIx) announces other ranks.
bool MayHaveOtherRanks() {
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    const char* const size = std::getenv(name);
    if (size != nullptr) return std::string_view(size) != "1";
  }
  return std::getenv("PMIX_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr;
}

// Bytes of files that the system caches in this thread's card if its memory is a NUMA node of the
// host (GH200, GB200): not free, but released when someone allocates.
std::int64_t FilePages() {
  int device = 0, config = 0, node = -1;
  Check(cudaGetDevice(&device), "the GPU in use");
  // Drivers before CUDA 12.2 do not know these attributes.
  if (cudaDeviceGetAttribute(&config, cudaDevAttrNumaConfig, device) != cudaSuccess ||
      config != cudaDeviceNumaConfigNumaNode ||
      cudaDeviceGetAttribute(&node, cudaDevAttrNumaId, device) != cudaSuccess) {
    cudaGetLastError();  // clears the error, so that no later call reports it
    return 0;
  }
  const std::string file = fmt::format("/sys/devices/system/node/node{}/meminfo", node);
  return MemoryInfo(file, "Active(file)").value_or(0) +
         MemoryInfo(file, "Inactive(file)").value_or(0);
}

}  // namespace

void Check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw RunError(
      fmt::format("{}: CUDA says {} ({})", what, cudaGetErrorString(code), static_cast<int>(code)),
      AdviceFor(code));
}

void AllowSharedMemory(const void* kernel, std::size_t bytes) {
  constexpr std::size_t kAlwaysAllowed = 46 << 10;  // 48 KiB, less what kernels declare statically
  if (bytes <= kAlwaysAllowed) return;
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::size_t> allowed;  // key: card and kernel
  int device = 0;
  Check(cudaGetDevice(&device), "the GPU in use");
  const std::scoped_lock lock(mutex);
  std::size_t& most = allowed[{device, kernel}];
  if (bytes <= most) return;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of a kernel");
  most = bytes;
}

// Called before CUDA starts; keeps variables that the user has set. A receive that waits for its
// sender must not share a hardware queue with work for which the sender waits, nor delay the
// loading of a kernel. A single rank loads kernels when first used: loading a library takes
// seconds.
void PrepareEnvironment() {
  constexpr int kKeep = 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeep);
  setenv("CUDA_MODULE_LOADING", MayHaveOtherRanks() ? "EAGER" : "LAZY", kKeep);
  setenv("NCCL_RUNTIME_CONNECT", "0", kKeep);        // connect at creation, not within a step
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", kKeep);  // all communicators in the host's order
}

std::string WhyNoGpu() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return "";
  cudaGetLastError();  // clears the error; the return value reports it
  return fmt::format("no CUDA device: {}",
                     code == cudaSuccess ? "the driver shows none" : cudaGetErrorString(code));
}

std::vector<std::string> GpuIds() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clears the error: without a driver there are no cards
    return {};
  }
  std::vector<std::string> ids;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    Check(cudaGetDeviceProperties(&properties, device), "properties of a GPU");
    std::string id;
    for (const char byte : properties.uuid.bytes) {
      id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
    ids.push_back(id);
  }
  return ids;
}

std::string Libraries() {
  int runtime = 0, driver = 0;
  Check(cudaRuntimeGetVersion(&runtime), "version of the CUDA runtime");
  Check(cudaDriverGetVersion(&driver), "version of the CUDA driver");
  return fmt::format("CUDA {}, driver {}", Version(runtime),
                     driver == 0 ? std::string("none") : "for CUDA " + Version(driver));
}

void Open(int device, GpuContext& context) {
  Check(cudaSetDevice(device), "opening the GPU");
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, device), "properties of the GPU");
  context.device = device;
  context.name = properties.name;
  context.address = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                properties.pciBusID, properties.pciDeviceID);
  context.major = properties.major;
  context.minor = properties.minor;
  context.multiprocessors = properties.multiProcessorCount;
  context.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  context.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  const auto queue = [] {
    cudaStream_t stream = nullptr;
    Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a queue of the GPU");
    return static_cast<void*>(stream);
  };
  context.queue = queue();
  context.input_queue = queue();
  Check(cudaMallocHost(&context.bounce, kBounceBytes), "page-locked host memory");
  context.bounce_bytes = kBounceBytes;
}

void Close(GpuContext& context) {
  for (void* queue : {context.queue, context.input_queue}) {
    if (queue == nullptr) continue;
    // Ignores errors of earlier work: calls that waited for it have reported them.
    cudaStreamSynchronize(Stream(queue));
    cudaStreamDestroy(Stream(queue));
  }
  if (context.bounce != nullptr) cudaFreeHost(context.bounce);
}

std::int64_t FreeBytes() {
  std::size_t free = 0, total = 0;
  Check(cudaMemGetInfo(&free, &total), "free memory of the GPU");
  return static_cast<std::int64_t>(free) + FilePages();
}

void* AllocateZeroed(std::int64_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, Size(bytes)), "memory of the GPU");
  Check(cudaMemset(data, 0, Size(bytes)), "clearing memory of the GPU");
  // Our queues do not wait for the default queue, which clears the memory.
  Check(cudaDeviceSynchronize(), "clearing memory of the GPU");
  return data;
}

void Free(void* data) { cudaFree(data); }

void* AllocatePinned(std::int64_t bytes) {
  void* data = nullptr;
  const std::size_t size = std::max<std::size_t>(Size(bytes), 1);
  Check(cudaMallocHost(&data, size), "page-locked host memory");
  std::memset(data, 0, size);
  return data;
}

void FreePinned(void* data) { cudaFreeHost(data); }

void StartCopy(void* queue, const void* from, void* to, std::int64_t bytes) {
  if (bytes == 0) return;
  Check(cudaMemcpyAsync(to, from, Size(bytes), cudaMemcpyDefault, Stream(queue)), "a copy");
}

void Copy(const GpuContext& gpu, const void* from, void* to, std::int64_t bytes, bool in) {
  for (std::int64_t begin = 0; begin < bytes; begin += gpu.bounce_bytes) {
    const std::int64_t piece = std::min(gpu.bounce_bytes, bytes - begin);
    const void* source = static_cast<const char*>(from) + begin;
    void* target = static_cast<char*>(to) + begin;
    if (in) std::memcpy(gpu.bounce, source, Size(piece));
    StartCopy(gpu.queue, in ? gpu.bounce : source, in ? target : gpu.bounce, piece);
    Synchronise(gpu.queue);
    if (!in) std::memcpy(target, gpu.bounce, Size(piece));
  }
}

void SetZero(void* queue, void* data, std::int64_t bytes) {
  if (bytes == 0) return;
  Check(cudaMemsetAsync(data, 0, Size(bytes), Stream(queue)), "clearing memory of the GPU");
}

void Synchronise(void* queue) { Check(cudaStreamSynchronize(Stream(queue)), "work of the GPU"); }

void* NewEvent(bool timed) {
  cudaEvent_t event = nullptr;
  Check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
        "an event");
  return event;
}

void DeleteEvent(void* event) { cudaEventDestroy(EventOf(event)); }

void RecordEvent(void* event, void* queue) {
  Check(cudaEventRecord(EventOf(event), Stream(queue)), "recording an event");
}

void MakeWait(void* event, void* queue) {
  Check(cudaStreamWaitEvent(Stream(queue), EventOf(event), 0), "waiting for an event");
}

bool Happened(void* event) {
  const cudaError_t code = cudaEventQuery(EventOf(event));
  if (code == cudaErrorNotReady) {
    cudaGetLastError();  // clears the status: this is not an error
    return false;
  }
  Check(code, "work of the GPU");
  return true;
}

void Await(void* event) { Check(cudaEventSynchronize(EventOf(event)), "work of the GPU"); }

double SecondsBetween(void* earlier, void* later) {
  constexpr double kMilli = 1e-3;
  float milliseconds = 0;
  Check(cudaEventElapsedTime(&milliseconds, EventOf(earlier), EventOf(later)), "time of an event");
  return kMilli * static_cast<double>(milliseconds);
}

void BeginGraph(void* queue) {
  Check(cudaStreamBeginCapture(Stream(queue), cudaStreamCaptureModeThreadLocal),
        "recording a graph");
}

void* EndGraph(void* queue, std::int64_t& nodes) {
  cudaGraph_t graph = nullptr;
  Check(cudaStreamEndCapture(Stream(queue), &graph), "recording a graph");
  std::size_t count = 0;
  Check(cudaGraphGetNodes(graph, nullptr, &count), "nodes of a graph");
  nodes = static_cast<std::int64_t>(count);
  cudaGraphExec_t ready = nullptr;
  // Transfers keep the priority of their queue over the computation.
  const cudaError_t code =
      cudaGraphInstantiate(&ready, graph, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(graph);
  Check(code, "making a graph");
  return ready;
}

void AbandonGraph(void* queue) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(Stream(queue), &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}

void DeleteGraph(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

void LaunchGraph(void* graph, void* queue) {
  Check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), Stream(queue)), "launching a graph");
}

void PushRange(const char* name) { nvtxRangePushA(name); }
void PopRange() { nvtxRangePop(); }

}  // namespace trireme::device::cuda
