// Output: the folder and the files of one checkpoint on their way to the disk. Serial work of a
// writer's thread: no MPI, but for Create with hints.
#ifndef TRIREME_SRC_CHECKPOINT_OUTPUT_HPP_
#define TRIREME_SRC_CHECKPOINT_OUTPUT_HPP_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rounds.hpp"
#include "trireme/base/positioned_file.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "write_plan.hpp"

namespace trireme::checkpoint {

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

#endif  // TRIREME_SRC_CHECKPOINT_OUTPUT_HPP_
