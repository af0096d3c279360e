// GatheredSums: the checksums of all writers' segments, on rank 0, which writes them down.
#ifndef TRIREME_SRC_CHECKPOINT_GATHERED_SUMS_HPP_
#define TRIREME_SRC_CHECKPOINT_GATHERED_SUMS_HPP_

#include <cstdint>
#include <vector>

#include "checksums.hpp"
#include "trireme/comm/communicator.hpp"
#include "write_plan.hpp"

namespace trireme::checkpoint {

class GatheredSums {
 public:
  // Collective. Takes the memory: on rank 0, 24 bytes for each segment of the files and 8 for each
  // rank. plans: of a group of ranks, for which the one that `gives` speaks. Both must outlive it.
  GatheredSums(const comm::Communicator& world, const std::vector<WritePlan>& plans, bool gives);

  // Collective, once the plans have their hashes. Takes no memory.
  void Gather();
  // Of the whole files, in the plans' order, on rank 0.
  const std::vector<FileSums>& Files() const { return files_; }
  // Memory of this rank for segments, in all lists and in the text of checksums.json: those of the
  // whole files on rank 0, else those of the plans.
  std::int64_t MemoryBytes() const;

 private:
  const comm::Communicator& world_;
  const std::vector<WritePlan>& plans_;
  const bool gives_;
  std::vector<FileSums> files_;       // [plans] on rank 0
  std::vector<int> counts_, starts_;  // [ranks] on rank 0
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_GATHERED_SUMS_HPP_
