// Cards: the list of them, opening one, and CUDA's environment.
#include <fmt/format.h>
#include <stdlib.h>

#include <string_view>

#include "backend.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/memory_info.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::device::cuda {

namespace {

constexpr std::size_t kBounceBytes = std::size_t{16} << 20;  // of copies of ordinary host memory

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

// Whether launchers announce other ranks, before MPI starts: Open MPI, PMI (MPICH, Cray), Slurm,
// PMIx.
bool MayHaveOtherRanks() {
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    const char* const size = std::getenv(name);
    if (size != nullptr) return std::string_view(size) != "1";
  }
  return std::getenv("PMIX_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr;
}

// Bytes of files that the system keeps in this thread's card, where its memory is a NUMA node of
// the host (GH200, GB200): not free, but given up to whoever allocates.
std::int64_t FilePages() {
  int device = 0, config = 0, node = -1;
  Check(cudaGetDevice(&device), "the GPU in use");
  // Drivers before CUDA 12.2 do not know what is asked.
  if (cudaDeviceGetAttribute(&config, cudaDevAttrNumaConfig, device) != cudaSuccess ||
      config != cudaDeviceNumaConfigNumaNode ||
      cudaDeviceGetAttribute(&node, cudaDevAttrNumaId, device) != cudaSuccess) {
    cudaGetLastError();  // is no later call's
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

// Called before CUDA starts; keeps variables that the user has set. A receive that waits for its
// sender must not share a hardware queue with work that the sender waits for, nor delay the loading
// of a kernel. Alone, kernels are loaded when first used: loading all of a library takes seconds.
void PrepareEnvironment() {
  constexpr int kKeep = 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeep);
  setenv("CUDA_MODULE_LOADING", MayHaveOtherRanks() ? "EAGER" : "LAZY", kKeep);
  setenv("NCCL_RUNTIME_CONNECT", "0", kKeep);  // when a communicator is made, not within a step
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", kKeep);  // of several communicators: the host's order
}

std::string WhyNoGpu() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return "";
  cudaGetLastError();  // reported by the return value
  return fmt::format("no CUDA device: {}",
                     code == cudaSuccess ? "the driver shows none" : cudaGetErrorString(code));
}

std::vector<std::string> GpuIds() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // a driver that is not there has no cards
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
    // Errors of earlier work have been reported by the calls that waited for it.
    cudaStreamSynchronize(static_cast<cudaStream_t>(queue));
    cudaStreamDestroy(static_cast<cudaStream_t>(queue));
  }
  if (context.bounce != nullptr) cudaFreeHost(context.bounce);
}

std::int64_t FreeBytes() {
  std::size_t free = 0, total = 0;
  Check(cudaMemGetInfo(&free, &total), "free memory of the GPU");
  return static_cast<std::int64_t>(free) + FilePages();
}

}  // namespace trireme::device::cuda
