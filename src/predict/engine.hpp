// Engine: a discrete-event simulation of one step, with one rank for each pipeline stage. The other
// ranks of a stage do the same at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <vector>

#include "trireme/comm/ledger.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::predict {

// Network: seconds of a transfer, from the places of its ranks and the machine's links.

// A transfer on a link with nobody else: a delay, then seconds in which it takes the link.
struct Cost {
  double latency = 0, seconds = 0;
  bool network = false;  // leaves the node
};

// The links as one rank sees them.
class Network {
 public:
  Network(const Machine& machine, const comm::GridShape& shape, const comm::GridOptions& options,
          int rank);
  Cost Of(const device::LoggedTransfer& transfer) const;

 private:
  // Ranks of a group, `stride` apart in the world.
  int StrideOf(comm::Group group) const;
  int RanksOnNode(comm::Group group, int ranks) const;
  Cost OfMessage(const device::LoggedTransfer& transfer) const;
  const Machine& machine_;
  const comm::GridShape shape_;
  const int shard_ranks_, rank_;
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

struct Tape {
  std::vector<TapeEvent> events;
  std::vector<TapeTransfer> transfers;
  std::vector<TapeTask> tasks;
  double product_seconds = 0, attention_seconds = 0, pass_seconds = 0;  // sums
};

// Writes the tape of a planned rank. All must outlive it.
class TapeWriter final : public device::WorkLog {
 public:
  TapeWriter(const Machine& machine, const Network& network, Tape& tape)
      : machine_(machine), network_(network), tape_(tape) {}

  void Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool fp8) override;
  void Attention(double flops, double bytes, Dtype type) override;
  void Pass(double bytes) override;
  int Start(const device::LoggedTransfer& transfer) override;
  void Wait(int number) override;
  void BeginTask(int kind, int micro_batch, int chunk) override;
  void EndTask() override;

 private:
  void Compute(double seconds);
  void Put(TapeEvent::Kind kind, int index) { tape_.events.push_back({kind, index, 0}); }
  const Machine& machine_;
  const Network& network_;
  Tape& tape_;
};

// Seconds of a kernel alone.
double ProductSeconds(const Machine& machine, std::int64_t m, std::int64_t n, std::int64_t k,
                      Dtype type, bool fp8);
double AttentionSeconds(const Machine& machine, double flops, double bytes, Dtype type);
double PassSeconds(const Machine& machine, double bytes);

// Matches: transfers of several stages' tapes that belong together.

// A transfer of a tape.
struct Place {
  static constexpr int kNone = -1;
  int stage = kNone, transfer = kNone;
};
using Places = std::vector<std::vector<Place>>;                    // [stage][transfer]
using JointPlaces = std::vector<std::vector<std::vector<Place>>>;  // [stage][transfer]: all places

bool IsReceive(const device::LoggedTransfer& what);

// The other end of each message; kNone: not a message between stages. Those of one tag between two
// stages arrive in the order of their sends. RunError for one that nobody takes.
Places MatchMessages(const std::vector<Tape>& tapes);

// All stages' places of each transfer that several stages take part in; empty: of one stage alone.
JointPlaces MatchJoint(const std::vector<Tape>& tapes);

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

// Stage: the state of one stage's rank in a simulation.

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr int kNone = Place::kNone;

// A transfer on its link.
struct Flow {
  int transfer = 0;
  double latency = 0, left = 0, began = 0;
  bool network = false;
};

enum class State : std::uint8_t { kUnknown, kStarted, kDone };

struct Stage {
  const Tape* tape = nullptr;
  std::size_t next = 0;  // event
  double now = 0;
  bool computes = false;
  double compute_left = 0;  // s at full speed
  int awaited = kNone;      // transfer
  double wait_began = 0, task_began = 0;
  std::vector<State> states;              // [transfers]
  std::vector<bool> ready;                // [transfers]: all ranks have started it
  std::map<int, std::deque<int>> queues;  // of transfers, by group and payload
  std::vector<Flow> flows;                // heads of queues
  StageTimes times;
  double next_time = kNever;  // of its next event, unless `changed`
  bool changed = true;
  bool Ended() const { return next == tape->events.size() && !computes && awaited == kNone; }
};

}  // namespace trireme::predict
