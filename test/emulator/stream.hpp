// Streams of the emulator: queues that run when they are awaited, or by chance; the part needed by
// stand-ins of libraries (cublasLt, NCCL), to queue an operation and to check pointers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

// Kinds and times of operations, told to a stand-in of CUPTI that the program has loaded
// (common/stub_cupti.c). Only if TRIREME_CUPTI names that library.

struct Label {
  enum class Kind { kNone, kKernel, kCopy, kFill, kGraph };
  Kind kind = Kind::kNone;
  const void* kernel = nullptr;  // kKernel: its function; null: has
  const char* name = nullptr;    // name of the kernel
  std::size_t bytes = 0;         // kCopy, kFill
};

// The step, which tells of itself when it is done. captured: it is a node of a graph, whose launch
// is the call that it belongs to.
std::function<bool()> Told(std::function<bool()> step, const Label& label, cudaStream_t stream,
                           bool captured);

// The symbol of a function of this program, mangled; "" if there is none.
std::string SymbolOf(const void* function);

// Queues `step` behind what `stream` holds. It is called when the stream comes to it, again and
// again until it returns true: false means "not yet" (a transfer under way), and other streams run
// meanwhile. While it runs, and only then, device memory is open: an MPI transfer that is still
// under way between two calls must not touch it, but buffers of the operation's own. It calls
// nothing of the runtime's API.
// A stream that is being captured records it instead; each launch of the graph runs a copy of
// `step` as it was when it was queued, so what it remembers from call to call is held by value (a
// mutable lambda; a fresh buffer on its first call), not shared with its copies.
// cudaErrorInvalidResourceHandle for the legacy default stream and for what is no stream.
// label: what a profiling library calls it.
cudaError_t Enqueue(cudaStream_t stream, std::function<bool()> step, const Label& label = {});

// The same; in a capture, also behind the last operation that it was given in this way.
cudaError_t EnqueueInTurn(cudaStream_t stream, std::function<bool()> step, const Label& label);

bool IsStream(cudaStream_t stream);
bool IsCapturing(cudaStream_t stream);
// Number of the capture in which the stream takes part, from 1; 0: none.
std::uint64_t CaptureOf(cudaStream_t stream);
// Runs other streams' operations, a little, in any order; false: nothing could be run.
bool RunALittle();

// Whether [pointer, pointer + bytes) lies within one live allocation of device memory.
bool IsDeviceMemory(const void* pointer, std::size_t bytes);

// Ends the process if MPI has ended: its streams, graphs, communicators and memory had to be
// destroyed before, by their owners. call: default, the function that calls it.
void RefuseAfterFinalize(const char* call = __builtin_FUNCTION());

// Writes "emulated CUDA: message" to stderr; the second returns `code` as the API's last error.
[[noreturn]] void Die(const std::string& message);
cudaError_t Refuse(cudaError_t code, const std::string& message);

// Decides every order from here on, and how eagerly streams run. TRIREME_EMULATOR_SEED, mixed with
// the rank of the process, at the start.
void SetSeed(unsigned long long seed);

// Within the emulator: streams, events, captures and graphs.

struct Capture;

// A place in a stream that an event remembers.
struct Moment {
  CUstream_st* stream;  // place of a moment that has not happened
  bool happened = false;
  std::chrono::steady_clock::time_point time;
};

struct Operation {
  enum class Kind { kStep, kRecord, kWait };
  Kind kind;
  std::function<bool()> step;      // kStep
  std::shared_ptr<Moment> moment;  // kRecord, kWait
};

}  // namespace emulator

struct CUstream_st {
  std::deque<emulator::Operation> queue;
  int device = 0;
  int priority = 0;
  bool destroyed = false;  // gone from the API; its queue is still to be run
  std::shared_ptr<emulator::Capture> capture;
  std::vector<int> tail;  // capture: nodes that the next one comes behind
};

struct CUevent_st {
  bool timed = true;
  std::shared_ptr<emulator::Moment> moment;  // null: never recorded
  std::weak_ptr<emulator::Capture> capture;  // recorded last within one
  std::vector<int> nodes;                    // capture: what it comes behind
  bool captured = false;
};

namespace emulator {

CUstream_st* NewStream(int priority);
void DestroyStream(CUstream_st* stream);
// The stream of cudaMemset alone.
CUstream_st* LegacyStream();
// Streams that can be waited for: all that are not destroyed, and the legacy one.
std::vector<CUstream_st*> AllStreams();

void Push(CUstream_st* stream, Operation operation);
// Runs the first operation of the queue, or what it waits for; false: nothing could be run now.
bool Advance(CUstream_st* stream);
void RunAll(CUstream_st* stream);                      // until its queue is empty
void RunUntil(const std::shared_ptr<Moment>& moment);  // until it has happened
void RunWhatCanBeRun();  // of all streams; leaves what is not yet done
// One operation of the stream or a few, as the dice say.
void RunSome(CUstream_st* stream);

// The card that the process has set.
int CurrentDevice();

// Graphs: operations recorded from streams, with the operations each comes after, run in any order
// that respects these.

struct Node {
  std::function<bool()> step;
  std::vector<int> behind;  // nodes of lower number
};
using Nodes = std::vector<Node>;

struct Capture {
  CUstream_st* origin;
  cudaStreamCaptureMode mode;
  std::vector<CUstream_st*> streams;  // taking part
  Nodes nodes;
  std::vector<int> last_in_turn;  // the last node of those that run one by one; none at first
  std::uint64_t number = 0;       // from 1, of all captures of the process
  bool invalid = false;
};

// Whether a capture forbids what would wait or allocate.
bool CaptureForbids();
// Such a call came: the captures that forbid it are spoilt.
cudaError_t SpoilCaptures(const char* call);

cudaError_t BeginCapture(CUstream_st* stream, cudaStreamCaptureMode mode);
// The nodes, or null with the error.
std::shared_ptr<const Nodes> EndCapture(CUstream_st* stream, cudaError_t& error);
// The stream is destroyed: the capture that it takes part in comes to nothing.
void DropCapture(CUstream_st* stream);
cudaError_t RecordNode(CUstream_st* stream, std::function<bool()> step);
void RecordEvent(CUstream_st* stream, CUevent_st* event);
cudaError_t WaitInCapture(CUstream_st* stream, CUevent_st* event);

// One run of a graph, as an operation of a stream.
std::function<bool()> RunOf(std::shared_ptr<const Nodes> nodes);

}  // namespace emulator
