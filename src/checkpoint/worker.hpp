// Worker: one thread that works through tasks in their order, beside the rank's own thread. Tasks
// must not call MPI.
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
  // Waits for the task under way, which Stopping() asks to end; drops those after it.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the thread, once, before the first task. Throws if the system has none to give.
  void Start();
  void Queue(std::function<void()> task);
  std::size_t Unfinished() const;  // tasks queued or under way
  bool Idle() const { return Unfinished() == 0; }
  // Waits until at most so many tasks are queued or under way.
  void Await(std::size_t most = 0);
  // Waits for all tasks, and throws what the first failed one threw. Tasks after it were dropped.
  void Finish();
  // The same, but returns it; null: none failed.
  std::exception_ptr TakeFailure();
  // True if the thread is to end. Long tasks ask between two pieces.
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

// A segment of the file that this rank gives to its writer.
struct OwnSegment {
  static constexpr std::size_t kHeader = static_cast<std::size_t>(-1);
  std::size_t segment = 0;      // in WritePlan::segments
  std::size_t block = kHeader;  // of the list that the plan was made from; or the file's header
  std::int64_t first = 0, last = 0;  // elements of the flattened tensor
};

struct WritePlan {
  std::string file;               // "model.safetensors"
  Layout layout;                  // of the whole file, the same on every rank
  std::vector<Segment> segments;  // of the group, by their offsets; hashes set by Hasher
  std::vector<int> holders;       // rank of the group that has each segment
  std::vector<OwnSegment> own;    // segments of this rank, in the order of their offsets
};

// The segment of that number in plan.segments, which is among the rank's own.
const OwnSegment& OwnOf(const WritePlan& plan, std::size_t segment);

// Collective. The range of a block is cut into segments that its replicas write in turn. group: the
// ranks, among them this one, that share a writer.
// AgreedError (exit code 1) if ranks list different tensors, or if an element would be written
// by no rank or by several: the state would not be whole.
WritePlan MakeWritePlan(const comm::Communicator& world, const comm::Communicator& group,
                        const std::string& file, const std::vector<kernels::StateBlock>& blocks);

// The rounds in which a writer's group moves its segments through shared memory.

// A segment on its way from the rank that holds it to its writer.
struct StagedSegment {
  std::size_t file = 0;     // index of its plan
  std::size_t segment = 0;  // index in the plan's segments
  int member = 0;           // rank in the group that holds it
  std::int64_t place = 0;   // bytes from the begin of the round's memory
};

struct Round {
  std::vector<StagedSegment> segments;  // in the order of file and offset
  std::int64_t bytes = 0;
};

// Segments of the group's plans, in rounds of at most `most` bytes; a longer segment, such as a
// large header, has a round of its own. Pure: the same on every rank of the group.
std::vector<Round> PlanRounds(const std::vector<WritePlan>& plans, std::int64_t most);

// Bytes of the largest round.
std::int64_t LargestRound(const std::vector<Round>& rounds);

// Hasher: a thread that makes the hashes of a writer's segments.

class Hasher {
 public:
  using Data = std::function<const void*(const StagedSegment&)>;

  // plans: take the hashes. cores: as in Worker.
  Hasher(std::vector<int> cores, std::vector<WritePlan>& plans);

  void Start() { worker_.Start(); }  // as in Worker
  // Holds back the rounds that follow, until Release. Data that stay in memory until the
  // checkpoint is on the disk can be hashed while the writing thread waits for the disk; a
  // copy to the system's memory and a hash at the same time slow each other.
  void HoldBack();
  // From any thread.
  void Release();
  // Makes the hashes of the round's segments, from `data`, which stays valid until then.
  void Queue(const Round& round, Data data);
  // Waits until at most so many rounds that are not held back are left.
  void Await(std::size_t most = 0) { worker_.Await(most); }
  bool Idle() const { return worker_.Idle(); }  // but for rounds held back

 private:
  void Make(const Round& round, const Data& data);

  std::vector<WritePlan>& plans_;
  std::mutex mutex_;
  bool hold_back_ = false;
  std::vector<std::function<void()>> held_back_;
  Worker worker_;  // ends before the members above
};

// Output: the folder and the files of one checkpoint on their way to the disk. Serial work of a
// writer's thread: no MPI, but for Create with hints.

// World rank 0. Makes the folder of checkpoints and, empty, the temporary one with its tensor
// files, and reserves their space. Throws RunError. hints: see WriterOptions; with any, the calling
// thread must be MPI's. Throws what the order's may_publish throws, before the first change.
struct Prepared {
  std::int64_t sequence = 0;          // the checkpoint's place in the order of writing
  std::vector<std::string> warnings;  // leftovers of earlier sessions that cannot be removed
};
Prepared Prepare(const Order& order, const std::vector<WritePlan>& plans, const std::string& hints);

// World rank 0. Writes the small files, flushes the folder and gives it its name, durably. files:
// checksums of the written bytes, in the plans' order. Throws RunError.
void Complete(const Order& order, const std::vector<WritePlan>& plans,
              const std::vector<FileSums>& files);

std::string TemporaryOf(const Order& order);

// The tensor files as one writer sees them.
class Output {
 public:
  // Opens the files of Prepare. Throws RunError, as all below. The plans must outlive it.
  Output(const Order& order, const std::vector<WritePlan>& plans);

  void Write(const StagedSegment& segment, const void* data);
  // Flushes the bytes written so far, as another thread may while this one writes on.
  void FlushData();
  // The same, and what else the file system must know of the files.
  void Flush();
  // Reads flushed segments back from the disk and makes their hashes, beside writes of others.
  // `stopping` is asked before each: true ends the work early.
  void ReadBack(std::span<const StagedSegment> segments, const std::function<bool()>& stopping);
  // Checks the hashes of these rounds, all read back, against the plans', and closes the files.
  void Verify(const std::vector<Round>& rounds);

 private:
  const std::vector<WritePlan>& plans_;
  std::vector<PositionedFile> files_;              // [plans]
  std::vector<std::vector<std::uint64_t>> found_;  // hashes that were read back, [plans][segments]
  std::vector<char> buffer_;                       // of ReadBack
};

}  // namespace trireme::checkpoint
