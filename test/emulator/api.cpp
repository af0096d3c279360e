// The runtime's API: memory and copies; errors, versions, cards, attributes of kernels; streams,
// events, graphs.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"
#include "kernel.hpp"
#include "memory.hpp"
#include "settings.hpp"
#include "stream.hpp"

struct CUgraph_st {
  std::shared_ptr<const emulator::Nodes> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const emulator::Nodes> nodes;
};

namespace emulator {

// One call at a time, from whatever OS thread: kernels run within a call. None after MPI_Finalize.
class Entry {
 public:
  explicit Entry(const char* call = __builtin_FUNCTION()) : lock_(Mutex()) {
    RefuseAfterFinalize(call);
  }

 private:
  static std::recursive_mutex& Mutex();
  std::lock_guard<std::recursive_mutex> lock_;
};

// Keeps the code as the last error, without a word on stderr.
cudaError_t Fail(cudaError_t code);

namespace {

constexpr int kVersion = 12040;
constexpr int kMultiprocessors = 8;  // few: grids that fill the card stay small
constexpr int kThreadsPerMultiprocessor = 2048;
constexpr std::size_t kSharedPerMultiprocessor = std::size_t{228} << 10;
constexpr std::size_t kReservedPerBlock = std::size_t{1} << 10;
constexpr int kBlocksPerMultiprocessor = 32;

int NumaNode() {
  const char* const node = std::getenv("TRIREME_EMULATOR_NUMA_NODE");
  return node == nullptr ? -1 : std::atoi(node);
}

cudaError_t last_error = cudaSuccess;
int current_device = 0;

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"}};

const ErrorText& Describe(cudaError_t code) {
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                   [&](const ErrorText& error) { return error.code == code; });
  return found == std::end(kErrors) ? *(std::end(kErrors) - 1) : *found;
}

bool IsDevice(int device) {
  return device >= 0 && device < static_cast<int>(VisibleDevices().size());
}

// Rows of bytes from one place to another.
struct Copy {
  void* to;
  std::size_t to_pitch;
  const void* from;
  std::size_t from_pitch;
  std::size_t width, height;

  std::size_t ToExtent() const { return height == 0 ? 0 : to_pitch * (height - 1) + width; }
  std::size_t FromExtent() const { return height == 0 ? 0 : from_pitch * (height - 1) + width; }
  void Run() const {
    if (width == 0 || height == 0) return;
    DeviceAccess::Prepare(to);
    DeviceAccess::Prepare(from);
    for (std::size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(to) + row * to_pitch,
                   static_cast<const char*>(from) + row * from_pitch, width);
    }
  }
};

enum class Place { kDevice, kPinned, kHost, kWrong };

Place PlaceOf(const void* data, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (DeviceMemory().Contains(address)) {
    return DeviceMemory().Holding(data, bytes) != nullptr ? Place::kDevice : Place::kWrong;
  }
  if (PinnedMemory().Contains(address)) {
    return PinnedMemory().Holding(data, bytes) != nullptr ? Place::kPinned : Place::kWrong;
  }
  return Place::kHost;
}

cudaError_t CheckCopy(const Copy& copy, cudaMemcpyKind kind, bool asynchronous) {
  const Place to = PlaceOf(copy.to, copy.ToExtent());
  const Place from = PlaceOf(copy.from, copy.FromExtent());
  if (to == Place::kWrong || from == Place::kWrong) {
    return Refuse(cudaErrorInvalidValue,
                  fmt::format("a copy of {} rows of {} bytes {} outside a live allocation",
                              copy.height, copy.width, to == Place::kWrong ? "to" : "from"));
  }
  if (kind != cudaMemcpyDefault) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to_device != (to == Place::kDevice) || from_device != (from == Place::kDevice)) {
      return Refuse(cudaErrorInvalidValue, "the kind of a copy does not say where its memory is");
    }
  }
  if (asynchronous && (to == Place::kHost || from == Place::kHost)) {
    return Refuse(cudaErrorInvalidValue,
                  "an asynchronous copy with host memory that is not page-locked "
                  "(cudaMallocHost): the host would wait for it");
  }
  return cudaSuccess;
}

cudaError_t QueueCopy(const Copy& copy, cudaMemcpyKind kind, cudaStream_t stream) {
  const cudaError_t wrong = CheckCopy(copy, kind, true);
  if (wrong != cudaSuccess) return wrong;
  const auto run = [copy] {
    running.what = "a copy";
    copy.Run();
    return true;
  };
  return Enqueue(stream, run, {.kind = Label::Kind::kCopy, .bytes = copy.width * copy.height});
}

// Operation that fills memory when its stream comes to it.
std::function<bool()> Filling(void* pointer, int value, std::size_t bytes) {
  return [pointer, value, bytes] {
    running.what = "a cudaMemset";
    if (!IsDeviceMemory(pointer, bytes)) Die("cudaMemset comes to memory that was freed");
    if (value == 0) {
      DeviceMemory().Clear(pointer, bytes);
    } else {
      DeviceAccess::Prepare(pointer);
      std::memset(pointer, value, bytes);
    }
    return true;
  };
}

cudaError_t CheckFilling(void* pointer, std::size_t bytes) {
  if (PlaceOf(pointer, bytes) == Place::kDevice) return cudaSuccess;
  return Refuse(cudaErrorInvalidValue,
                fmt::format("cudaMemset of {} bytes outside a live allocation", bytes));
}

bool FreeIsForbidden(const char* call) {
  const Entry entry(call);
  return CaptureForbids();
}

// Until nothing is queued. Other threads of the process come in between, such as those that abort
// transfers.
void AwaitAllStreams() {
  for (;;) {
    {
      const Entry entry;
      RunWhatCanBeRun();
      const std::vector<CUstream_st*> streams = AllStreams();
      if (std::all_of(streams.begin(), streams.end(),
                      [](const CUstream_st* stream) { return stream->queue.empty(); })) {
        return;
      }
    }
    sched_yield();
  }
}

cudaError_t NoStream(const char* call) {
  return Refuse(cudaErrorInvalidResourceHandle,
                std::string(call) + " is given the legacy default stream, or what is no stream");
}

// Refuses to wait for a stream that is being captured.
cudaError_t CheckWait(cudaStream_t stream, const char* call) {
  if (!IsStream(stream)) return NoStream(call);
  if (stream->capture == nullptr) return cudaSuccess;
  stream->capture->invalid = true;
  return Refuse(cudaErrorStreamCaptureUnsupported,
                std::string(call) + " on a stream that is being captured");
}

cudaError_t CheckWait(cudaEvent_t event, const char* call) {
  if (event == nullptr) return Fail(cudaErrorInvalidResourceHandle);
  if (!event->captured) return cudaSuccess;
  if (const auto capture = event->capture.lock()) capture->invalid = true;
  return Refuse(cudaErrorCapturedEvent,
                std::string(call) + " of an event that was recorded in a capture");
}

}  // namespace

std::recursive_mutex& Entry::Mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

cudaError_t Fail(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

cudaError_t Refuse(cudaError_t code, const std::string& message) {
  std::fprintf(stderr, "emulated CUDA: %s (%s)\n", message.c_str(), Describe(code).name);
  return Fail(code);
}

int CurrentDevice() { return current_device; }

}  // namespace emulator

using namespace emulator;

// Errors, versions, cards, attributes of kernels.

cudaError_t cudaGetLastError() {
  const Entry entry;
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorString(cudaError_t error) { return Describe(error).text; }

const char* cudaGetErrorName(cudaError_t error) { return Describe(error).name; }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  constexpr int kDriver = 12090;  // the first with which NCCL's operations overlap in graphs
  *version = static_cast<int>(Number("TRIREME_EMULATOR_DRIVER", kDriver));
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const Entry entry;
  *count = static_cast<int>(VisibleDevices().size());
  return *count > 0 ? cudaSuccess : Fail(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  const Entry entry;
  if (VisibleDevices().empty()) return Fail(cudaErrorNoDevice);
  if (!IsDevice(device)) return Fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  const Entry entry;
  if (VisibleDevices().empty()) return Fail(cudaErrorNoDevice);
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const Entry entry;
  if (!IsDevice(device)) return Fail(cudaErrorInvalidDevice);
  const int number = VisibleDevices()[static_cast<std::size_t>(device)];
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated GPU");
  std::snprintf(properties->uuid.bytes, sizeof(properties->uuid.bytes), "emulated-%d", number);
  properties->totalGlobalMem = CardBytes();
  properties->sharedMemPerBlock = kSharedWithoutAsking;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = warpSize;
  properties->maxThreadsPerBlock = kMaxThreads;
  std::copy_n(std::begin({1024, 1024, 64}), 3, properties->maxThreadsDim);
  std::copy_n(std::begin({0x7fffffff, 65535, 65535}), 3, properties->maxGridSize);
  properties->totalConstMem = 65536;
  properties->major = static_cast<int>(Number("TRIREME_EMULATOR_CAPABILITY", 9));
  properties->minor = 0;
  properties->multiProcessorCount = kMultiprocessors;
  properties->concurrentKernels = 1;
  properties->ECCEnabled = 1;
  properties->pciBusID = number + 1;
  properties->asyncEngineCount = 3;
  properties->unifiedAddressing = 1;
  properties->memoryBusWidth = 5120;
  properties->l2CacheSize = 50 << 20;
  properties->maxThreadsPerMultiProcessor = kThreadsPerMultiprocessor;
  properties->sharedMemPerMultiprocessor = kSharedPerMultiprocessor;
  properties->sharedMemPerBlockOptin = kSharedLimit;
  properties->maxBlocksPerMultiProcessor = kBlocksPerMultiprocessor;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const Entry entry;
  cudaDeviceProp all;
  const cudaError_t error = cudaGetDeviceProperties(&all, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = all.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(all.sharedMemPerBlock);
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = all.warpSize;
      return cudaSuccess;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = all.regsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = all.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrPciBusId:
      *value = all.pciBusID;
      return cudaSuccess;
    case cudaDevAttrPciDeviceId:
      *value = all.pciDeviceID;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = all.l2CacheSize;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = all.maxThreadsPerMultiProcessor;
      return cudaSuccess;
    case cudaDevAttrPciDomainId:
      *value = all.pciDomainID;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = all.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = all.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(all.sharedMemPerMultiprocessor);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(all.sharedMemPerBlockOptin);
      return cudaSuccess;
    // TRIREME_EMULATOR_NUMA_NODE: the cards' memory is this node of the host; -2: the driver does
    // not know the attributes.
    case cudaDevAttrNumaConfig:
      if (NumaNode() == -2) return Fail(cudaErrorInvalidValue);
      *value = NumaNode() < 0 ? cudaDeviceNumaConfigNone : cudaDeviceNumaConfigNumaNode;
      return cudaSuccess;
    case cudaDevAttrNumaId:
      *value = NumaNode();
      return cudaSuccess;
  }
  return Refuse(cudaErrorInvalidValue, "an attribute of a card that the emulator does not know");
}

cudaError_t cudaDeviceGetPCIBusId(char* bus, int length, int device) {
  const Entry entry;
  cudaDeviceProp all;
  const cudaError_t error = cudaGetDeviceProperties(&all, device);
  if (error != cudaSuccess) return error;
  if (length < 13) return Fail(cudaErrorInvalidValue);
  std::snprintf(bus, static_cast<std::size_t>(length), "0000:%02X:00.0",
                static_cast<unsigned>(all.pciBusID));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const Entry entry;
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  if (value < 0 || static_cast<std::size_t>(value) > kSharedLimit) {
    return Refuse(cudaErrorInvalidValue, "a kernel asks for " + std::to_string(value) +
                                             " bytes of dynamic shared memory; a block can have " +
                                             std::to_string(kSharedLimit));
  }
  SetSharedAllowance(kernel, static_cast<std::size_t>(value));
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  const Entry entry;
  *attributes = {};
  attributes->maxThreadsPerBlock = kMaxThreads;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(SharedAllowance(kernel));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, std::size_t shared_bytes) {
  const Entry entry;
  if (threads < 1 || threads > kMaxThreads) return Fail(cudaErrorInvalidValue);
  if (shared_bytes > SharedAllowance(kernel)) {
    *blocks = 0;
    return cudaSuccess;
  }
  const auto by_memory =
      static_cast<int>(kSharedPerMultiprocessor / (shared_bytes + kReservedPerBlock));
  *blocks = std::min({kThreadsPerMultiprocessor / threads, by_memory, kBlocksPerMultiprocessor});
  return cudaSuccess;
}

// Memory of the cards, page-locked host memory, copies.

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Entry entry;
  *total = CardBytes();
  *free = CardBytes() - DeviceMemory().LiveBytes();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  const Entry entry;
  *pointer = nullptr;
  if (CaptureForbids()) return SpoilCaptures("cudaMalloc");
  if (VisibleDevices().empty()) return Fail(cudaErrorNoDevice);
  if (bytes == 0) return cudaSuccess;
  if (bytes > CardBytes() - DeviceMemory().LiveBytes()) return Fail(cudaErrorMemoryAllocation);
  *pointer = DeviceMemory().Allocate(bytes);
  return *pointer != nullptr ? cudaSuccess : Fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (FreeIsForbidden("cudaFree")) return SpoilCaptures("cudaFree");
  AwaitAllStreams();
  const Entry entry;
  if (DeviceMemory().Free(pointer)) return cudaSuccess;
  return Refuse(cudaErrorInvalidValue, "cudaFree of what is no allocation, or is freed already");
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  const Entry entry;
  *pointer = nullptr;
  if (CaptureForbids()) return SpoilCaptures("cudaMallocHost");
  if (VisibleDevices().empty()) return Fail(cudaErrorNoDevice);
  if (bytes == 0) return cudaSuccess;
  *pointer = PinnedMemory().Allocate(bytes);
  return *pointer != nullptr ? cudaSuccess : Fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  RefuseAfterFinalize();
  AwaitAllStreams();
  const Entry entry;
  if (PinnedMemory().Free(pointer)) return cudaSuccess;
  return Refuse(cudaErrorInvalidValue,
                "cudaFreeHost of what is no allocation, or is freed already");
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const Entry entry;
  *attributes = {};
  switch (PlaceOf(pointer, 0)) {
    case Place::kDevice:
      attributes->type = cudaMemoryTypeDevice;
      attributes->devicePointer = const_cast<void*>(pointer);
      break;
    case Place::kPinned:
      attributes->type = cudaMemoryTypeHost;
      attributes->devicePointer = attributes->hostPointer = const_cast<void*>(pointer);
      break;
    case Place::kHost:
    case Place::kWrong:
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->hostPointer = const_cast<void*>(pointer);
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const Entry entry;
  if (CaptureForbids()) return SpoilCaptures("cudaMemcpy");
  const Copy copy{to, bytes, from, bytes, bytes, 1};
  const cudaError_t wrong = CheckCopy(copy, kind, false);
  if (wrong != cudaSuccess) return wrong;
  RunAll(LegacyStream());
  const DeviceAccess access;
  copy.Run();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Entry entry;
  return QueueCopy({to, bytes, from, bytes, bytes, 1}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  const Entry entry;
  if (width > to_pitch || width > from_pitch) {
    return Refuse(cudaErrorInvalidPitchValue, "rows of a copy are wider than their pitch");
  }
  return QueueCopy({to, to_pitch, from, from_pitch, width, height}, kind, stream);
}

cudaError_t cudaMemset(void* pointer, int value, std::size_t bytes) {
  const Entry entry;
  if (CaptureForbids()) return SpoilCaptures("cudaMemset");
  const cudaError_t wrong = CheckFilling(pointer, bytes);
  if (wrong != cudaSuccess) return wrong;
  Push(LegacyStream(),
       {.kind = Operation::Kind::kStep, .step = Filling(pointer, value, bytes), .moment = nullptr});
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  const Entry entry;
  const cudaError_t wrong = CheckFilling(pointer, bytes);
  if (wrong != cudaSuccess) return wrong;
  return Enqueue(stream, Filling(pointer, value, bytes),
                 {.kind = Label::Kind::kFill, .bytes = bytes});
}

// Streams, events, graphs.

cudaError_t cudaDeviceSynchronize() {
  const Entry entry;
  if (CaptureForbids()) return SpoilCaptures("cudaDeviceSynchronize");
  for (CUstream_st* stream : AllStreams()) RunAll(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const Entry entry;
  *stream = nullptr;
  if (VisibleDevices().empty()) return Fail(cudaErrorNoDevice);
  if (flags != cudaStreamNonBlocking) {
    return Refuse(cudaErrorInvalidValue,
                  "a stream is made without cudaStreamNonBlocking: it would wait for the legacy "
                  "default stream");
  }
  *stream = NewStream(priority);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Entry entry;
  if (!IsStream(stream)) return NoStream("cudaStreamDestroy");
  if (stream->capture != nullptr) DropCapture(stream);
  DestroyStream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Entry entry;
  const cudaError_t wrong = CheckWait(stream, "cudaStreamSynchronize");
  if (wrong != cudaSuccess) return wrong;
  RunAll(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Entry entry;
  const cudaError_t wrong = CheckWait(stream, "cudaStreamQuery");
  if (wrong != cudaSuccess) return wrong;
  RunSome(stream);
  return stream->queue.empty() ? cudaSuccess : Fail(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Entry entry;
  if (!IsStream(stream)) return NoStream("cudaStreamWaitEvent");
  if (event == nullptr) return Fail(cudaErrorInvalidResourceHandle);
  if (!event->captured && event->moment == nullptr) return cudaSuccess;
  if (mutations_watched && IsOmitted(Mutation::kWait, nullptr)) return cudaSuccess;
  if (event->captured || stream->capture != nullptr) return WaitInCapture(stream, event);
  Push(stream, {.kind = Operation::Kind::kWait, .step = nullptr, .moment = event->moment});
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Entry entry;
  if (VisibleDevices().empty()) return Fail(cudaErrorNoDevice);
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Entry entry;
  if (event == nullptr) return Fail(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Entry entry;
  if (!IsStream(stream)) return NoStream("cudaEventRecord");
  if (event == nullptr) return Fail(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    RecordEvent(stream, event);
    return cudaSuccess;
  }
  event->captured = false;
  event->moment = std::make_shared<Moment>(Moment{.stream = stream, .happened = false, .time = {}});
  Push(stream, {.kind = Operation::Kind::kRecord, .step = nullptr, .moment = event->moment});
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Entry entry;
  const cudaError_t wrong = CheckWait(event, "cudaEventSynchronize");
  if (wrong != cudaSuccess) return wrong;
  if (event->moment != nullptr) RunUntil(event->moment);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Entry entry;
  const cudaError_t wrong = CheckWait(event, "cudaEventQuery");
  if (wrong != cudaSuccess) return wrong;
  if (event->moment == nullptr || event->moment->happened) return cudaSuccess;
  RunSome(event->moment->stream);
  return event->moment->happened ? cudaSuccess : Fail(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Entry entry;
  for (const cudaEvent_t event : {start, end}) {
    if (event == nullptr || !event->timed || event->moment == nullptr || event->captured) {
      return Fail(cudaErrorInvalidResourceHandle);
    }
    if (!event->moment->happened) return Fail(cudaErrorNotReady);
  }
  const std::chrono::duration<float, std::milli> between = end->moment->time - start->moment->time;
  *milliseconds = between.count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Entry entry;
  if (!IsStream(stream)) return NoStream("cudaStreamBeginCapture");
  return BeginCapture(stream, mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Entry entry;
  *graph = nullptr;
  if (!IsStream(stream)) return NoStream("cudaStreamEndCapture");
  cudaError_t error = cudaSuccess;
  auto nodes = EndCapture(stream, error);
  if (nodes != nullptr) *graph = new CUgraph_st{std::move(nodes)};
  return error;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Entry entry;
  if (!IsStream(stream)) return NoStream("cudaStreamIsCapturing");
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  const Entry entry;
  // Priorities decide nothing here.
  const auto known = static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority);
  if (graph == nullptr || (flags & ~known) != 0) return Fail(cudaErrorInvalidValue);
  *executable = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Entry entry;
  if (executable == nullptr) return Fail(cudaErrorInvalidValue);
  return Enqueue(stream, RunOf(executable->nodes), {.kind = Label::Kind::kGraph});
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  const Entry entry;
  if (!IsStream(stream)) return NoStream("cudaGraphUpload");
  return executable != nullptr ? cudaSuccess : Fail(cudaErrorInvalidValue);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Entry entry;
  if (graph == nullptr) return Fail(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Entry entry;
  if (executable == nullptr) return Fail(cudaErrorInvalidValue);
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  const Entry entry;
  if (graph == nullptr || nodes != nullptr) return Fail(cudaErrorInvalidValue);
  *count = graph->nodes->size();
  return cudaSuccess;
}
