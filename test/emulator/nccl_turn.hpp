// Order in which NCCL's operations of all communicators begin on a card, as
// NCCL_LAUNCH_ORDER_IMPLICIT has it.
#ifndef TRIREME_TEST_EMULATOR_NCCL_TURN_HPP_
#define TRIREME_TEST_EMULATOR_NCCL_TURN_HPP_

#include <chrono>
#include <memory>
#include <string>

namespace emulator {

// NCCL's choice (enqueue.cc, getImplicitOrder) by the variable, its own version and the driver's.
enum class BeginOrder {
  kAny,       // as their streams come to them
  kLaunched,  // after the operation that the host launched before has begun
  kSerial     // after that operation has ended
};
BeginOrder OrderOfBegins(bool in_graph);

// Wait of an operation, since the first call of Over.
class Patience {
 public:
  // TRIREME_EMULATOR_PATIENCE, 100: of an operation that waits for its turn. Twice as long for
  // other ranks, so that the operation that holds up all others is told of.
  static std::chrono::seconds Limit();
  bool Over(std::chrono::seconds limit = Limit());

 private:
  std::chrono::steady_clock::time_point since_{};
};

// Place of an operation outside graphs among those of this process. Copies are the same place.
class NcclTurn {
 public:
  NcclTurn() = default;                 // begins when it likes
  explicit NcclTurn(std::string name);  // behind all others so far
  // Whether it has come. Ends the process if it does not come for longer than one has patience.
  bool Come();
  void Begin();
  void End();

 private:
  struct Place;
  std::shared_ptr<Place> place_;
};

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_NCCL_TURN_HPP_
