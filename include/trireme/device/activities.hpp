// Activities: each kernel, copy and fill of a card, with its times, as recorded by NVIDIA's
// profiling library CUPTI. The library is loaded if it can be found.
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
  double begin = 0, end = 0;  // on the clock of Seconds()
  std::int64_t bytes = 0;     // of a copy or a fill
  std::uint64_t tag = 0;      // tag of the innermost Push around the call that queued it; 0: none
  std::uint32_t queue = 0;    // CUPTI's number of the queue
  std::uint32_t graph = 0;    // number of the recorded graph to which it belongs; 0: none
  std::int32_t name = -1;     // of a kernel: index into ActivityRecord::names
  Kind kind = Kind::kKernel;
};

struct ActivityRecord {
  std::vector<Activity> all;       // in no particular order
  std::vector<std::string> names;  // kernel symbols, as compiled
  std::int64_t left_out = 0;       // activities for which there was no room
  double full_at = 0;              // when room first ran out, on the clock of Seconds()
  double clock_error = 0;          // largest possible error of the times, seconds
  std::uint32_t queue = 0;         // CUPTI's number of the stream's queue
  std::uint32_t input_queue = 0;   // the same for its input queue
};

// Records everything that this process's card does, from construction to Finish.
class Activities {
 public:
  Activities() = default;
  Activities(const Activities&) = delete;
  Activities& operator=(const Activities&) = delete;
  virtual ~Activities() = default;  // ends the recording

  // Work that this thread queues from now on carries `tag` (>= 1), until Pop.
  virtual void Push(std::uint64_t tag) = 0;
  virtual void Pop() = 0;
  // Waits for the card and ends the recording.
  virtual ActivityRecord Finish() = 0;
  virtual std::string Library() const = 0;  // "CUPTI 13.0 (/usr/lib/libcupti.so.13)"
};

struct MaybeActivities {
  std::unique_ptr<Activities> activities;  // null: could not be recorded; `why` says the reason
  std::string why;
};
// Starts recording. Keeps at most `most` activities, of about 100 bytes each. The environment
// variable TRIREME_CUPTI may name the library to load. Only one recording at a time.
MaybeActivities RecordActivities(const Stream& stream, std::int64_t most);

// Version of the build's CUPTI header: "CUPTI 13.0"; "no CUPTI" if there was none; "" without CUDA.
std::string ActivityLibrary();

// WorkLog: receives what a planned rank computes and transfers, in program order.

// A transfer of a planned group. The numbers are those of the enumerations, as in Slice.
struct LoggedTransfer {
  std::int8_t group = 0, transfer = 0, payload = 0;  // comm::Group, comm::Transfer, comm::Payload
  int ranks = 1;                                     // ranks in the group
  std::int64_t bytes = 0;                            // comm::Traffic::payload
  int peer = -1, tag = -1;                           // of a message; peer: rank in the group
};

class WorkLog {
 public:
  WorkLog() = default;
  WorkLog(const WorkLog&) = delete;
  WorkLog& operator=(const WorkLog&) = delete;
  virtual ~WorkLog() = default;

  // A product [m, k] x [k, n] with operands of this type; fp8: they are rounded to fp8 first.
  virtual void Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool fp8) = 0;
  // One call of attention. flops: of its products; bytes: of its operands.
  virtual void Attention(double flops, double bytes, Dtype type) = 0;
  // Any other kernel. bytes: read and written, each operand counted once.
  virtual void Pass(double bytes) = 0;
  // A transfer starts after all work logged so far. Returns its number, for Wait.
  virtual int Start(const LoggedTransfer& transfer) = 0;
  // Work from now on starts after that transfer has ended.
  virtual void Wait(int number) = 0;
  // A task of the pipeline's schedule begins or ends. kind: parallel::TaskKind.
  virtual void BeginTask(int kind, int micro_batch, int chunk) = 0;
  virtual void EndTask() = 0;
};

// Tells the log of a planned stream, if there is one, about a kernel without products.
inline void LogPass(const Stream& stream, double bytes) {
  if (stream.planned->log != nullptr && bytes > 0) stream.planned->log->Pass(bytes);
}

}  // namespace trireme::device
