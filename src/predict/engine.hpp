// Engine: a discrete-event simulation of one step, with one rank for each pipeline stage. The other
// ranks of a stage do the same at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "trireme/comm/ledger.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::predict {

// A transfer on a link with nobody else: a delay, then seconds in which it takes the link.
struct Cost {
  double latency = 0, seconds = 0;
  bool network = false;  // leaves the node
};

// Tape: what one rank does in a step, in the order of its program, with the seconds of each thing
// alone.

struct TapeTask {
  int kind = 0, micro_batch = 0, chunk = 0;  // parallel::TaskKind
};

struct TapeTransfer {
  device::LoggedTransfer what;
  Cost cost;
};

struct TapeEvent {
  enum class Kind : std::uint8_t { kCompute, kStart, kWait, kBeginTask, kEndTask };
  Kind kind = Kind::kCompute;
  std::int32_t index = 0;  // of the transfer or the task
  double seconds = 0;      // of kCompute
};

// Sums over kernels of one kind, s.
struct KernelSeconds {
  double products = 0, attention = 0, passes = 0;
  double Sum() const { return products + attention + passes; }
};

struct Tape {
  std::vector<TapeEvent> events;
  std::vector<TapeTransfer> transfers;
  std::vector<TapeTask> tasks;
  KernelSeconds kernels;
};

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

// A step of a plan, recorded and played.

struct PlayedStep {
  std::vector<Tape> tapes;             // [stages]
  std::vector<train::RankPlan> ranks;  // [stages]: the ranks that were recorded
  Simulated simulated;
};

// shape: of the step, at most a batch. slices: wanted of the simulation.
PlayedStep PlayStep(const train::Plan& plan, const Machine& machine, const train::StepShape& shape,
                    bool slices);

}  // namespace trireme::predict
