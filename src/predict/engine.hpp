// Engine: a discrete-event simulation of one step, with one rank per pipeline stage, which stands
// for all ranks of its stage.
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

// Cost of a transfer that has a link to itself: a delay, then seconds in which it uses the link.
struct Cost {
  double latency = 0, seconds = 0;
  bool network = false;  // over the network; else within the node
};

// Tape: what one rank does in a step, in program order, with the undisturbed time of each piece.

struct TapeTask {
  int kind = 0, micro_batch = 0, chunk = 0;  // kind: parallel::TaskKind
};

struct TapeTransfer {
  device::LoggedTransfer what;
  Cost cost;
};

struct TapeEvent {
  enum class Kind : std::uint8_t { kCompute, kStart, kWait, kBeginTask, kEndTask };
  Kind kind = Kind::kCompute;
  std::int32_t index = 0;  // index in transfers or tasks
  double seconds = 0;      // s, for kCompute
};

// Seconds of all kernels, by kind.
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

// Times of one stage's rank, s; the first three add up to `end`.
struct StageTimes {
  double compute = 0;
  std::array<double, comm::kGroups> exposed{};  // waits for transfers, [groups]
  double bubble = 0;                            // waits for another stage's result
  double end = 0;
};

// Something that a stage does from `begin` to `end`, s.
struct SimulatedSlice {
  enum class Kind : std::uint8_t { kTask, kTransfer, kWait };
  Kind kind = Kind::kTask;
  int stage = 0;
  int index = 0;  // index in the tape's tasks or transfers
  double begin = 0, end = 0;
};

struct Simulated {
  std::vector<StageTimes> stages;
  std::vector<SimulatedSlice> slices;  // in the order of their ends; empty unless asked for
  double Makespan() const;
};

// Plays the tapes, [stages], against each other:
//   - Transfers of one group, payload and peer run one after the other; others that use the same
//     link of the rank (within its node, or to the network) share it equally.
//   - A transfer over several stages (world, replica, embedding) begins when all have started it.
//   - A message arrives when its sender's transfer ends. Without machine.background, transfers move
//     only while their rank waits, and a message moves while its receiver waits.
// slices: record SimulatedSlices. Throws RunError if a rank would wait for ever.
Simulated Play(const Machine& machine, const std::vector<Tape>& tapes, bool slices);

// PlayStep: records and simulates a step of a plan.

struct PlayedStep {
  std::vector<Tape> tapes;             // [stages]
  std::vector<train::RankPlan> ranks;  // [stages]: the recorded ranks
  Simulated simulated;
};

// shape: size of the step, at most a batch. slices: record SimulatedSlices.
PlayedStep PlayStep(const train::Plan& plan, const Machine& machine, const train::StepShape& shape,
                    bool slices);

}  // namespace trireme::predict
