// The runtime's API: errors, versions, cards, attributes of kernels.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "api.hpp"
#include "kernel.hpp"
#include "memory.hpp"
#include "queue.hpp"
#include "settings.hpp"
#include "stream.hpp"

namespace emulator {
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
