// Streams, events and captures within the emulator.
#ifndef TRIREME_TEST_EMULATOR_QUEUE_HPP_
#define TRIREME_TEST_EMULATOR_QUEUE_HPP_

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

struct Capture;  // capture.hpp

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

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_QUEUE_HPP_
