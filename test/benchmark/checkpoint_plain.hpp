// Input and output without the program's engine, against which checkpoints are measured: positioned
// transfers of one file by the writers of each node, and non-blocking MPI-IO.
#ifndef TRIREME_TEST_BENCHMARK_CHECKPOINT_PLAIN_HPP_
#define TRIREME_TEST_BENCHMARK_CHECKPOINT_PLAIN_HPP_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::benchmark {

inline constexpr std::int64_t kPieceBytes = std::int64_t{4}
                                            << 20;  // of a transfer, as checkpoints'

// Drops the system's copies of a synced file, so that the next read comes from the disk. A file
// system in memory keeps them.
void Forget(const std::string& path);

// A contiguous share of one file of `bytes` bytes for each writer: the first ranks of `writers`
// equal groups of each node, as checkpoint::Writer takes them; 0: all ranks.
class PlainFile {
 public:
  PlainFile(const comm::Communicator& world, const std::string& path, std::int64_t bytes,
            int writers);

  bool Writes() const { return writes_; }
  std::int64_t ShareBytes() const { return end_ - begin_; }
  std::vector<char>& Memory() { return memory_; }  // the share; of ranks that write only

  // Collective. The slowest writer's seconds. The file is new, its space reserved before.
  double Write();          // pieces, then fsync
  double Read(bool cold);  // pieces into memory
  // hash_seconds: of a thread that makes XXH3 of each piece beside the writing; null: without.
  double WriteHashing(double* hash_seconds);
  void Remove();  // collective

 private:
  void Create();

  const comm::Communicator& world_;
  const std::string path_;
  const std::int64_t bytes_;
  bool writes_ = false;
  std::int64_t begin_ = 0, end_ = 0;
  std::vector<char> memory_;
};

struct Overlapped {
  double stall = 0;    // seconds in which the steps waited
  double to_disk = 0;  // from the begin until all bytes are flushed
  int steps = 0;       // passed meanwhile
};

// Collective. A copy of `mine` into the memory of the node's writers, then MPI_File_iwrite_at of
// their shares of `path`, moved on by MPI_Testsome between calls of `step`, and MPI_File_sync at
// the end.
Overlapped WriteByMpi(const comm::Communicator& world, const std::string& path, int writers,
                      const std::vector<char>& mine, const std::function<void()>& step);

}  // namespace trireme::benchmark

#endif  // TRIREME_TEST_BENCHMARK_CHECKPOINT_PLAIN_HPP_
