// Checker: a thread that flushes and reads back what a writer has written, while it writes on.
#ifndef TRIREME_SRC_CHECKPOINT_CHECKER_HPP_
#define TRIREME_SRC_CHECKPOINT_CHECKER_HPP_

#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include "output.hpp"
#include "rounds.hpp"
#include "worker.hpp"
#include "write_plan.hpp"

namespace trireme::checkpoint {

class Checker {
 public:
  // plans: of the files. cores: as in Worker.
  Checker(std::vector<int> cores, const std::vector<WritePlan>& plans);

  void Start() { worker_.Start(); }  // as in Worker
  void Begin(Output& output);        // with a checkpoint
  void Stop() { stopping_ = true; }  // for good: reading is given up; any thread
  // Notes a segment that was written. Every 64 MiB they are flushed and read back, so that the disk
  // is never idle.
  void Written(const StagedSegment& segment);
  // Reads back the rest, which is flushed, and waits for the end of all. Throws what failed.
  void Finish();

  void Await() { worker_.Await(); }  // as in Worker
  bool Idle() const { return worker_.Idle(); }
  std::exception_ptr TakeFailure() { return worker_.TakeFailure(); }
  // Once it is idle: seconds of flushes, and of reading back.
  double FlushSeconds() const { return flush_seconds_; }
  double ReadSeconds() const { return read_seconds_; }
  // Memory of a writer for what is read at once.
  std::int64_t MemoryBytes() const;

 private:
  void Queue(bool flush);

  const std::vector<WritePlan>& plans_;
  Output* output_ = nullptr;
  std::atomic<bool> stopping_ = false;
  std::vector<StagedSegment> written_;  // and not yet queued
  std::int64_t written_bytes_ = 0;
  double flush_seconds_ = 0, read_seconds_ = 0;  // of the thread
  Worker worker_;                                // ends before the members above
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_CHECKER_HPP_
