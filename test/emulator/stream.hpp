// Streams of the emulator: queues that run when they are awaited, or by chance; the part needed by
// stand-ins of libraries (cublasLt, NCCL), to queue an operation and to check pointers.
#ifndef TRIREME_TEST_EMULATOR_STREAM_HPP_
#define TRIREME_TEST_EMULATOR_STREAM_HPP_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "activity.hpp"
#include "cuda_runtime.h"

namespace emulator {

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

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_STREAM_HPP_
