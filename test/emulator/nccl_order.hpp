// Order in which ranks launch operations of communicators that they share.
#ifndef TRIREME_TEST_EMULATOR_NCCL_ORDER_HPP_
#define TRIREME_TEST_EMULATOR_NCCL_ORDER_HPP_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace emulator {

// Part of a collective's message to the other ranks: operations that its rank had launched before.
struct LaunchNote {
  struct Count {
    std::uint64_t communicator = 0;
    std::int64_t launched = 0;
  };
  std::int64_t number = 0;         // of the collective in its communicator, from 1
  std::int32_t in_graph = 0;       // counted from the beginning of a capture
  std::int32_t occupied = 0;       // of `counts`
  std::array<Count, 24> counts{};  // of communicators that share two ranks; more are not compared
};

// Operations of one communicator that this process has launched. NCCL's kernels of two
// communicators may each wait for the other's room on a card unless the ranks that both have launch
// them in one order; that order is demanded of collectives here, with respect to all operations
// of the other communicator. Two messages may cross: a pipeline's do, by design, and a few blocks
// for each direction are all they need.
class LaunchOrder {
 public:
  // world: the members' ranks in MPI_COMM_WORLD.
  LaunchOrder(std::uint64_t id, std::vector<int> world);
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  // Counts an operation of all members. capture: number of the capture that records it, or 0.
  LaunchNote Launch(std::uint64_t capture);
  // Ends the process if member `other` had launched other operations than this one, `rank`.
  void Compare(const LaunchNote& own, int rank, const LaunchNote& others, int other) const;
  std::string Name() const;  // "communicator 0.2 of ranks 1, 3"

 private:
  std::int64_t Launched(std::uint64_t capture) const;

  std::uint64_t id_;
  std::vector<int> world_;
  std::vector<LaunchOrder*> shared_;  // living ones with two members or more of these, by age
  std::int64_t launched_ = 0;
  std::uint64_t capture_ = 0;  // the last one that recorded an operation
  std::int64_t recorded_ = 0;  // in that one
};

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_NCCL_ORDER_HPP_
