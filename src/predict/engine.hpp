// Engine: a discrete-event simulation of one step, with one rank for each pipeline stage. The other
// ranks of a stage do the same at the same time.
#ifndef TRIREME_SRC_PREDICT_ENGINE_HPP_
#define TRIREME_SRC_PREDICT_ENGINE_HPP_

#include <array>
#include <cstdint>
#include <vector>

#include "tape.hpp"
#include "trireme/comm/ledger.hpp"

namespace trireme::predict {

// Times of one stage's rank, s. They add up to `end`.
struct StageTimes {
  double compute = 0;
  std::array<double, comm::kGroups> exposed{};  // waits for transfers
  double bubble = 0;                            // waits for another stage's result
  double end = 0;
};

// Something that a stage does from one moment to another.
struct SimulatedSlice {
  enum class Kind : std::uint8_t { kTask, kTransfer, kWait };
  Kind kind = Kind::kTask;
  int stage = 0;
  int index = 0;  // of the tape's task or transfer
  double begin = 0, end = 0;
};

struct Simulated {
  std::vector<StageTimes> stages;
  std::vector<SimulatedSlice> slices;  // in the order of their ends, if wanted
  double Makespan() const;
};

// Plays the tapes, [stages], against each other:
//   - Transfers of one group and payload run one after the other; those of several share the rank's
//     link, to its node or to the network, equally.
//   - A transfer over several stages (world, replica, embedding) begins when all have started it.
//   - A message is there when its sender's transfer has ended. Without machine.background it is
//     taken while its receiver waits, and all transfers move only while the rank waits.
// RunError if a rank would wait for ever.
Simulated Play(const Machine& machine, const std::vector<Tape>& tapes, bool slices);

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_ENGINE_HPP_
