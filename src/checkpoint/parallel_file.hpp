// One file that all ranks of a communicator read or write together at explicit offsets: a thin
// layer over collective MPI-IO.
#ifndef TRIREME_SRC_CHECKPOINT_PARALLEL_FILE_HPP_
#define TRIREME_SRC_CHECKPOINT_PARALLEL_FILE_HPP_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

// Bytes in memory and their place in the file.
struct Piece {
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  const void* data = nullptr;
};

// Memory, and the place in the file that it is filled from.
struct Target {
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  void* data = nullptr;
};

// Everything but Size is collective, and every failure is agreed on. Transfers run in rounds of
// MPI_File_write_at_all or MPI_File_read_at_all, as many as the rank with the most pieces needs; a
// rank with nothing to move, or one that failed, takes part with zero bytes, so that none waits for
// it. A return code is not the evidence that bytes are on disk: whoever writes reads back.
class ParallelFile {
 public:
  enum class Access { kRead, kWrite };

  // Opens the existing file `path`. Errors carry `blame`. `group` must outlive the file. A rank
  // moves at most `transfer_bytes` in one round.
  ParallelFile(const comm::Communicator& group, const std::string& path, Access access,
               ExitCode blame, std::int64_t transfer_bytes = kTransferBytes);
  // Collective when still open: on unwinding from an AgreedError all ranks come here.
  ~ParallelFile();
  ParallelFile(const ParallelFile&) = delete;
  ParallelFile& operator=(const ParallelFile&) = delete;

  const std::string& Path() const { return path_; }
  ExitCode Blame() const { return blame_; }

  // Local. Throws Error(blame).
  std::int64_t Size() const;  // bytes

  // Each rank moves pieces of its own, in their order; the numbers of pieces may differ.
  // AgreedError with path, offset and reason.
  void WriteAll(const std::vector<Piece>& pieces);
  // `use(i)` is called as soon as targets[i] is filled, so that targets may share one buffer; what
  // it throws is agreed on as well.
  void ReadAll(
      const std::vector<Target>& targets,
      const std::function<void(std::size_t)>& use = [](std::size_t) {});

  // Flushes what was written and closes; AgreedError if that failed on a rank.
  void SyncAndClose();

 private:
  static constexpr std::int64_t kTransferBytes = std::int64_t{1} << 30;  // MPI counts are int

  const comm::Communicator* group_;
  std::string path_;
  ExitCode blame_;
  std::int64_t transfer_bytes_;
  MPI_File file_ = MPI_FILE_NULL;
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_PARALLEL_FILE_HPP_
