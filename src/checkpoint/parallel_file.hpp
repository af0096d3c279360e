// One file that all ranks of a communicator read or write at explicit offsets: a thin face of
// MPI-IO.
#ifndef TRIREME_SRC_CHECKPOINT_PARALLEL_FILE_HPP_
#define TRIREME_SRC_CHECKPOINT_PARALLEL_FILE_HPP_

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

// Opening and closing are collective and agreed; transfers are independent, so a rank that fails in
// one leaves no other waiting (the caller agrees afterwards, through Communicator::Together). A
// return code is not the evidence that bytes are on disk: whoever writes reads back.
class ParallelFile {
 public:
  enum class Access { kRead, kWrite };

  // Collective. Opens the existing file `path`; AgreedError when a rank cannot. Errors carry
  // `blame`. `group` must outlive the file. Transfers are split into calls of at most
  // `transfer_bytes`.
  ParallelFile(const comm::Communicator& group, const std::string& path, Access access,
               ExitCode blame, std::int64_t transfer_bytes = kTransferBytes);
  // Collective when still open: on unwinding from an AgreedError all ranks come here.
  ~ParallelFile();
  ParallelFile(const ParallelFile&) = delete;
  ParallelFile& operator=(const ParallelFile&) = delete;

  const std::string& Path() const { return path_; }
  ExitCode Blame() const { return blame_; }

  // Local. All throw Error(blame) with path, offset and reason.
  std::int64_t Size() const;  // bytes
  void WriteAt(std::int64_t offset, const void* data, std::int64_t bytes);
  void ReadAt(std::int64_t offset, void* data, std::int64_t bytes);  // all of it, or an error

  // Collective. Flushes what was written and closes; AgreedError when that failed on a rank.
  void SyncAndClose();

 private:
  static constexpr std::int64_t kTransferBytes = std::int64_t{1} << 30;  // MPI counts are int

  // Moves `count` bytes from or to offset + done.
  using Move = std::function<int(MPI_Offset at, std::int64_t done, int count, MPI_Status* status)>;
  void Transfer(bool write, std::int64_t offset, std::int64_t bytes, const Move& move);

  const comm::Communicator* group_;
  std::string path_;
  ExitCode blame_;
  std::int64_t transfer_bytes_;
  MPI_File file_ = MPI_FILE_NULL;
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_PARALLEL_FILE_HPP_
