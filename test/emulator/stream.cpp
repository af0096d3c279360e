// Runs queues as late as possible: an operation runs when it is awaited, when a later one is
// awaited, or when the dice decide so.
#include "stream.hpp"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "capture.hpp"
#include "fault.hpp"
#include "memory.hpp"
#include "queue.hpp"
#include "settings.hpp"

namespace emulator {
namespace {

std::vector<CUstream_st*>& Streams() {
  static std::vector<CUstream_st*> streams;
  return streams;
}

std::uint64_t operations = 0;
bool in_step = false;

bool RunStep(const std::function<bool()>& step, std::uint64_t number) {
  in_step = true;
  running = {.what = "an operation", .number = number};
  const bool done = step();
  running = {};
  in_step = false;
  return done;
}

// Streams whose work is done after they were destroyed.
void Forget(CUstream_st* stream) {
  if (!stream->destroyed || !stream->queue.empty()) return;
  std::erase(Streams(), stream);
  delete stream;
}

// Runs the beginning of another stream's queue now and then.
void Stir(const CUstream_st* except) {
  Dice& dice = TheDice();
  const auto count = static_cast<std::uint32_t>(Streams().size());
  if (count < 2 || !dice.Eager()) return;
  CUstream_st* other = Streams()[dice.Below(count)];
  if (other == except || other->queue.empty()) return;
  DeviceAccess access;
  auto steps = 1 + dice.Below(static_cast<std::uint32_t>(other->queue.size()));
  while (steps > 0 && !other->queue.empty() && Advance(other)) --steps;
  Forget(other);
}

// The same while the host waits for a stream: another one gets ahead by an operation.
void StirMeanwhile(const CUstream_st* awaited) {
  Dice& dice = TheDice();
  if (!dice.Eager()) return;
  const auto& streams = Streams();
  const auto first = dice.Below(static_cast<std::uint32_t>(streams.size()));
  for (std::size_t i = 0; i < streams.size(); ++i) {
    CUstream_st* other = streams[(first + i) % streams.size()];
    if (other == awaited || other->queue.empty()) continue;
    Advance(other);
    Forget(other);
    return;
  }
}

// Nothing to be done in the stream that is waited for: others go on, or other processes.
void GoRound() {
  if (!RunALittle()) sched_yield();
}

}  // namespace

CUstream_st* NewStream(int priority) {
  WatchFaults();
  auto* stream = new CUstream_st;
  stream->device = CurrentDevice();
  stream->priority = priority;
  Streams().push_back(stream);
  return stream;
}

void DestroyStream(CUstream_st* stream) {
  stream->destroyed = true;
  Forget(stream);
}

CUstream_st* LegacyStream() {
  static CUstream_st* stream = NewStream(0);
  return stream;
}

std::vector<CUstream_st*> AllStreams() { return Streams(); }

bool IsStream(cudaStream_t stream) {
  if (stream == nullptr) return false;
  const auto& all = Streams();
  return std::find(all.begin(), all.end(), stream) != all.end() && !stream->destroyed;
}

bool IsCapturing(cudaStream_t stream) { return IsStream(stream) && stream->capture != nullptr; }

std::uint64_t CaptureOf(cudaStream_t stream) {
  return IsCapturing(stream) ? stream->capture->number : 0;
}

void Push(CUstream_st* stream, Operation operation) {
  stream->queue.push_back(std::move(operation));
  Stir(stream);
}

cudaError_t Enqueue(cudaStream_t stream, std::function<bool()> step, const Label& label) {
  RefuseAfterFinalize("a kernel, a copy or another operation of a stream");
  if (in_step) Die("an operation of a stream calls the runtime's API");
  if (stream == nullptr) {
    return Refuse(cudaErrorInvalidResourceHandle,
                  "an operation is queued on the legacy default stream; name a stream");
  }
  if (!IsStream(stream)) {
    return Refuse(cudaErrorInvalidResourceHandle, "an operation is queued on what is no stream");
  }
  if (stream->device != CurrentDevice()) {
    return Refuse(cudaErrorInvalidResourceHandle,
                  "an operation is queued on a stream of another card than the current one");
  }
  step = Told(std::move(step), label, stream, stream->capture != nullptr);
  if (stream->capture != nullptr) return RecordNode(stream, std::move(step));
  Push(stream, {.kind = Operation::Kind::kStep, .step = std::move(step), .moment = nullptr});
  return cudaSuccess;
}

cudaError_t EnqueueInTurn(cudaStream_t stream, std::function<bool()> step, const Label& label) {
  if (!IsCapturing(stream)) return Enqueue(stream, std::move(step), label);
  const std::shared_ptr<Capture> capture = stream->capture;
  for (const int node : capture->last_in_turn) stream->tail.push_back(node);
  const cudaError_t code = Enqueue(stream, std::move(step), label);
  if (code == cudaSuccess) capture->last_in_turn = stream->tail;
  return code;
}

bool Advance(CUstream_st* stream) {
  if (stream->queue.empty()) return false;
  // The reference stays valid: nothing is queued while operations run.
  Operation& first = stream->queue.front();
  switch (first.kind) {
    case Operation::Kind::kStep:
      if (!RunStep(first.step, operations)) return false;
      ++operations;
      break;
    case Operation::Kind::kRecord:
      first.moment->time = std::chrono::steady_clock::now();
      first.moment->happened = true;
      break;
    case Operation::Kind::kWait:
      if (!first.moment->happened) return Advance(first.moment->stream);
      break;
  }
  stream->queue.pop_front();
  return true;
}

void RunAll(CUstream_st* stream) {
  DeviceAccess access;
  while (!stream->queue.empty()) {
    if (!Advance(stream)) GoRound();
    StirMeanwhile(stream);
  }
}

void RunUntil(const std::shared_ptr<Moment>& moment) {
  DeviceAccess access;
  while (!moment->happened) {
    if (!Advance(moment->stream)) GoRound();
    StirMeanwhile(moment->stream);
  }
}

void RunSome(CUstream_st* stream) {
  DeviceAccess access;
  for (auto steps = 1 + TheDice().Below(3); steps > 0 && !stream->queue.empty(); --steps) {
    const bool advanced = Advance(stream);
    StirMeanwhile(stream);
    if (advanced) continue;
    GoRound();
    break;
  }
}

bool RunALittle() {
  DeviceAccess access;
  const std::vector<CUstream_st*> streams = Streams();
  const auto count = streams.size();
  const auto first = TheDice().Below(static_cast<std::uint32_t>(count));
  bool any = false;
  for (std::size_t i = 0; i < count; ++i) {
    CUstream_st* stream = streams[(first + i) % count];
    any = Advance(stream) || any;
  }
  for (CUstream_st* stream : streams) Forget(stream);
  return any;
}

void RunWhatCanBeRun() {
  while (RunALittle()) {
  }
}

}  // namespace emulator
