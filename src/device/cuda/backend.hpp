// Functions of the device layer in CUDA; only built with CUDA. Pointers to queues, events and
// graphs are CUDA's handles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/device/activities.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::device::cuda {

void PrepareEnvironment();
std::string WhyNoGpu();
std::vector<std::string> GpuIds();
std::string Libraries();
void Open(int device, GpuContext& context);
void Close(GpuContext& context);
std::int64_t FreeBytes();

// Memory and copies.
void* AllocateZeroed(std::int64_t bytes);
void Free(void* data);
void* AllocatePinned(std::int64_t bytes);
void FreePinned(void* data);
// Complete on return. in: `from` is any host memory, else `to` is.
void Copy(const GpuContext& gpu, const void* from, void* to, std::int64_t bytes, bool in);
void StartCopy(void* queue, const void* from, void* to, std::int64_t bytes);
void SetZero(void* queue, void* data, std::int64_t bytes);

// Queues and events.
void Synchronise(void* queue);
void* NewEvent(bool timed);
void DeleteEvent(void* event);
void RecordEvent(void* event, void* queue);
void MakeWait(void* event, void* queue);
bool Happened(void* event);
void Await(void* event);
double SecondsBetween(void* earlier, void* later);
void BeginGraph(void* queue);
void* EndGraph(void* queue, std::int64_t& nodes);
void AbandonGraph(void* queue);
void DeleteGraph(void* graph);
void LaunchGraph(void* graph, void* queue);
void PushRange(const char* name);
void PopRange();

// cupti.cpp
MaybeActivities RecordActivities(const GpuContext& gpu, std::int64_t most);
std::string ActivityLibrary();

}  // namespace trireme::device::cuda
