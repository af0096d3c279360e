// Worker: one thread that runs tasks in order, beside the rank's own thread. Tasks must not call
// MPI.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "safetensors.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

class Worker {
 public:
  // cores: hardware threads that the thread may use; empty: those of the calling thread.
  explicit Worker(std::vector<int> cores);
  // Waits for the current task, which Stopping() asks to end; drops the tasks after it.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the thread, once, before the first task. Throws if no thread can be started.
  void Start();
  void Queue(std::function<void()> task);
  std::int64_t Unfinished() const;  // tasks queued or under way
  bool Idle() const { return Unfinished() == 0; }
  // Waits until at most `most` tasks are queued or under way.
  void Await(std::size_t most = 0);
  // Waits for all tasks; throws what the first failed one threw. The tasks after it were dropped.
  void Finish();
  // The same, but returns the exception; null: no task failed.
  std::exception_ptr TakeFailure();
  // True if the thread should end. Long tasks ask between pieces of work.
  bool Stopping() const;

 private:
  void Run(const std::stop_token& stop);

  const std::vector<int> cores_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;  // the first one is under way
  std::exception_ptr failure_;
  std::jthread thread_;  // ends before the members above
};

// A segment of the file that this rank hands to its writer.
struct OwnSegment {
  static constexpr std::size_t kHeader = static_cast<std::size_t>(-1);
  std::size_t segment = 0;           // index in WritePlan::segments
  std::size_t block = kHeader;       // index in the plan's list of blocks, or the file's header
  std::int64_t first = 0, last = 0;  // elements, counted in the flattened tensor
};

struct WritePlan {
  std::string file;               // "model.safetensors"
  Layout layout;                  // of the whole file, the same on every rank
  std::vector<Segment> segments;  // of the group, by offset; Hasher sets the hashes
  std::vector<int> holders;       // [segments]: rank in the group that has it
  std::vector<OwnSegment> own;    // this rank's segments, by offset
};

// The own segment of this rank whose index in plan.segments is `segment`; it must exist.
const OwnSegment& OwnOf(const WritePlan& plan, std::size_t segment);

// Collective. Cuts the range of each block into segments, which its replicas write in turn. group:
// the ranks, including this one, that share a writer. Throws AgreedError (exit code 1) if ranks
// list different tensors, or if no rank or several would write an element: then the state is
// incomplete or ambiguous.
WritePlan MakeWritePlan(const comm::Communicator& world, const comm::Communicator& group,
                        const std::string& file, const std::vector<kernels::StateBlock>& blocks);

// The rounds in which a group moves its segments to its writer through shared memory.

// A segment on its way from the rank that holds it to the writer.
struct StagedSegment {
  std::size_t file = 0;     // index of the file's plan
  std::size_t segment = 0;  // index in the plan's segments
  int member = 0;           // rank in the group that holds it
  std::int64_t place = 0;   // bytes from the start of the round's memory
};

struct Round {
  std::vector<StagedSegment> segments;  // by file, then by offset
  std::int64_t bytes = 0;
};

// The segments of the group's plans in rounds of at most `most` bytes; a longer segment, such as a
// large header, gets a round of its own. Gives the same result on every rank of the group.
std::vector<Round> PlanRounds(const std::vector<WritePlan>& plans, std::int64_t most);

// Bytes of the largest round.
std::int64_t LargestRound(const std::vector<Round>& rounds);

// Hasher: a thread that computes the hashes of a writer's segments.

class Hasher {
 public:
  using Data = std::function<const void*(const StagedSegment&)>;

  // plans: receive the hashes. cores: as in Worker.
  Hasher(std::vector<int> cores, std::vector<WritePlan>& plans);

  void Start() { worker_.Start(); }  // as in Worker
  // Holds back the following rounds until Release. For data that stays in memory until the
  // checkpoint is on disk: it is hashed while the writing thread waits for the disk, because
  // copying to the system's memory and hashing slow each other.
  void HoldBack();
  // May be called on any thread.
  void Release();
  // Computes the hashes of the round's segments from `data`, which must stay valid until then.
  void Queue(const Round& round, Data data);
  // Waits until at most `most` rounds are left, not counting those held back.
  void Await(std::size_t most = 0) { worker_.Await(most); }
  bool Idle() const { return worker_.Idle(); }  // not counting rounds held back

 private:
  void Make(const Round& round, const Data& data);

  std::vector<WritePlan>& plans_;
  std::mutex mutex_;
  bool hold_back_ = false;
  std::vector<std::function<void()>> held_back_;
  Worker worker_;  // ends before the members above
};

// Output: the folder and files of one checkpoint on their way to the disk. Serial work of a
// writer's thread, without MPI, except when files are created with hints.

struct Prepared {
  std::int64_t sequence = 0;          // number of this checkpoint in the order of writing
  std::vector<std::string> warnings;  // leftovers of earlier sessions that could not be removed
};
// World rank 0. Creates the folder of checkpoints and the temporary folder with empty tensor files,
// and reserves their space. Throws RunError, and what the order's may_publish throws before the
// first change. hints: see WriterOptions; if any, must run on the thread that calls MPI.
Prepared Prepare(const Order& order, const std::vector<WritePlan>& plans, const std::string& hints);

// World rank 0. Writes the small files, flushes the folder and durably gives it its name. files:
// hashes of the written bytes, in the plans' order. Throws RunError.
void Complete(const Order& order, const std::vector<WritePlan>& plans,
              const std::vector<FileSums>& files);

std::string TemporaryOf(const Order& order);

// The tensor files of one writer.
class Output {
 public:
  // Opens the files that Prepare made. The plans must outlive it. All functions throw RunError.
  Output(const Order& order, const std::vector<WritePlan>& plans);

  void Write(const StagedSegment& segment, const void* data);
  // Flushes the bytes written so far; another thread may call it while this one writes. data_only:
  // as in PositionedFile::Sync.
  void Flush(bool data_only);
  // Reads flushed segments back from the disk and hashes them; other threads may write meanwhile.
  // Asks `stopping` before each segment: true ends the work early.
  void ReadBack(std::span<const StagedSegment> segments, const std::function<bool()>& stopping);
  // Compares the hashes read back for all these rounds with the plans', and closes the files.
  void Verify(const std::vector<Round>& rounds);

 private:
  const std::vector<WritePlan>& plans_;
  std::vector<PositionedFile> files_;              // [plans]
  std::vector<std::vector<std::uint64_t>> found_;  // hashes read back, [plans][segments]
  std::vector<char> buffer_;                       // for ReadBack
};

}  // namespace trireme::checkpoint
