// The runtime's API: memory of the cards, page-locked host memory, copies.
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "api.hpp"
#include "capture.hpp"
#include "fault.hpp"
#include "memory.hpp"
#include "queue.hpp"
#include "settings.hpp"
#include "stream.hpp"

namespace emulator {
namespace {

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

}  // namespace
}  // namespace emulator

using namespace emulator;

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
