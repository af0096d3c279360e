// Graphs: operations recorded from streams, with the operations each comes after, run in any order
// that respects these.
#ifndef TRIREME_TEST_EMULATOR_CAPTURE_HPP_
#define TRIREME_TEST_EMULATOR_CAPTURE_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "queue.hpp"

namespace emulator {

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

#endif  // TRIREME_TEST_EMULATOR_CAPTURE_HPP_
