// Activities: kernels, copies and fills of a card one by one, with their times, as NVIDIA's
// profiling library (CUPTI) tells them. The library is loaded if it is there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::device {

struct Activity {
  enum class Kind : std::uint8_t { kKernel, kCopy, kFill };
  double begin = 0, end = 0;  // of Seconds()
  std::int64_t bytes = 0;     // of a copy or a fill
  std::uint64_t tag = 0;      // of the innermost Push around the call that queued it; 0: none
  std::uint32_t queue = 0;    // number of the queue, the library's
  std::uint32_t graph = 0;    // number of the graph that it is part of; 0: none
  std::int32_t name = -1;     // of a kernel: index of ActivityRecord::names
  Kind kind = Kind::kKernel;
};

struct ActivityRecord {
  std::vector<Activity> all;       // in no order
  std::vector<std::string> names;  // symbols of kernels, as compiled
  std::int64_t left_out = 0;       // found no room, from the first such moment on
  double full_at = 0;              // the first such moment, of Seconds()
  double clock_error = 0;   // the most by which the library's clock is placed wrongly, seconds
  std::uint32_t queue = 0;  // number of the stream's own queue
  std::uint32_t input_queue = 0;  // and of that for its input
};

// A recording of everything that this process's card does, from construction to Finish.
class Activities {
 public:
  Activities() = default;
  Activities(const Activities&) = delete;
  Activities& operator=(const Activities&) = delete;
  virtual ~Activities() = default;  // ends the recording

  // Calls of this thread that queue work carry `tag` (from 1) until Pop.
  virtual void Push(std::uint64_t tag) = 0;
  virtual void Pop() = 0;
  // Waits for the card, and ends the recording.
  virtual ActivityRecord Finish() = 0;
  virtual std::string Library() const = 0;  // "CUPTI 13.0 (/usr/lib/libcupti.so.13)"
};

struct MaybeActivities {
  std::unique_ptr<Activities> activities;  // null: none, because of
  std::string why;
};
// Starts recording; at most `most` activities are kept, in memory of about 100 bytes each. The
// environment variable TRIREME_CUPTI names a library to be taken. One recording at a time.
MaybeActivities RecordActivities(const Stream& stream, std::int64_t most);

// "CUPTI 13.0", of the header that the program was built with; "no CUPTI"; "" without CUDA.
std::string ActivityLibrary();

// WorkLog: told what a planned rank computes and transfers, in the order of its program.

// A transfer of a planned group. Numbers of enumerations as in Slice.
struct LoggedTransfer {
  std::int8_t group = 0, transfer = 0, payload = 0;  // comm::Group, comm::Transfer, comm::Payload
  int ranks = 1;                                     // of the group
  std::int64_t bytes = 0;                            // comm::Traffic::payload
  int peer = -1, tag = -1;                           // of a message; peer: rank in the group
};

class WorkLog {
 public:
  WorkLog() = default;
  WorkLog(const WorkLog&) = delete;
  WorkLog& operator=(const WorkLog&) = delete;
  virtual ~WorkLog() = default;

  // [m, k] x [k, n], with operands of this type; fp8: rounded to fp8 first.
  virtual void Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool fp8) = 0;
  // Attention of one call. flops: of its products; bytes: of its operands.
  virtual void Attention(double flops, double bytes, Dtype type) = 0;
  // Any other kernel. bytes: read and written, each operand once.
  virtual void Pass(double bytes) = 0;
  // A transfer begins after all work so far; the number goes to Wait.
  virtual int Start(const LoggedTransfer& transfer) = 0;
  // Work from now on follows the end of that transfer.
  virtual void Wait(int number) = 0;
  // A task of the pipeline's schedule begins or ends. kind: parallel::TaskKind.
  virtual void BeginTask(int kind, int micro_batch, int chunk) = 0;
  virtual void EndTask() = 0;
};

// Tells the log of a planned stream, if it has one, of a kernel without products.
inline void LogPass(const Stream& stream, double bytes) {
  if (stream.planned->log != nullptr && bytes > 0) stream.planned->log->Pass(bytes);
}

}  // namespace trireme::device
