// The runtime's API: streams, events, graphs.
#include <memory>
#include <string>
#include <utility>

#include "api.hpp"
#include "capture.hpp"
#include "memory.hpp"
#include "mutation.hpp"
#include "queue.hpp"
#include "settings.hpp"
#include "stream.hpp"

struct CUgraph_st {
  std::shared_ptr<const emulator::Nodes> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const emulator::Nodes> nodes;
};

namespace emulator {
namespace {

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
}  // namespace emulator

using namespace emulator;

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
