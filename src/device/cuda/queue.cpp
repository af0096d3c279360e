// Queues of a card: waiting, events, recorded graphs, ranges for profilers.
#include <nvtx3/nvToolsExt.h>

#include "backend.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::device::cuda {

namespace {
cudaStream_t Stream(void* queue) { return static_cast<cudaStream_t>(queue); }
cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }
}  // namespace

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
    cudaGetLastError();  // no error
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
  // A transfer stays ahead of the computation, as the priority of its queue had it.
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
