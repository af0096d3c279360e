// Room that operations of NCCL take on a card while they run or wait for other ranks.
#ifndef TRIREME_TEST_EMULATOR_NCCL_ROOM_HPP_
#define TRIREME_TEST_EMULATOR_NCCL_ROOM_HPP_

namespace emulator {

int BlocksOfNccl();  // of an operation of a communicator that sets no limit

// The most that operations have occupied at a time since the last call of ForgetMostBlocks.
int MostBlocks();
void ForgetMostBlocks();

// An operation that has begun: its blocks keep their multiprocessors, and its stream's successors
// its hardware queue, until it ends. Ends the process if all operations that have begun leave no
// kernel a multiprocessor or a queue.
class NcclRoom {
 public:
  NcclRoom() = default;
  void Take(int blocks);
  void Leave();

 private:
  int blocks_ = 0;
};

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_NCCL_ROOM_HPP_
