// Engine: plays the tapes of planned ranks against each other. Each stage has a computation,
// transfers on two links, and its own time, up to which both have been simulated.
#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::predict {

namespace {

using comm::Group, comm::Transfer;

template <typename List>
auto& At(List& list, int index) {
  return list[static_cast<std::size_t>(index)];
}

bool IsReceive(const device::LoggedTransfer& what) {
  return static_cast<Transfer>(what.transfer) == Transfer::kReceive;
}

// The links of one rank: computes the cost of a transfer from where its ranks are. Assumes ring and
// tree algorithms with the bandwidth terms of Thakur et al. 2005 (comm::Moved); a ring takes n - 1
// steps (an all-reduce twice as many), a tree 2 log2 n.
class Network {
 public:
  Network(const Machine& machine, const comm::GridShape& shape, const comm::GridOptions& options,
          int rank)
      : machine_(machine),
        shape_(shape),
        shard_ranks_(comm::ShardRanks(shape, options)),
        rank_(rank) {}

  Cost Of(const device::LoggedTransfer& transfer) const {
    const auto kind = static_cast<Transfer>(transfer.transfer);
    const auto group = static_cast<Group>(transfer.group);
    if (kind == Transfer::kReceive) return {};
    if (kind == Transfer::kSend) return OfMessage(transfer);
    const int ranks = transfer.ranks, here = RanksOnNode(group, ranks);
    const int nodes = CeilDivide(ranks, here);
    const bool leaves = nodes > 1;
    const bool sums = kind == Transfer::kAllReduce || kind == Transfer::kReduceScatter;
    const auto speed = [sums](const Link& link) {
      return sums && link.reduction > 0 ? link.reduction : link.bandwidth;
    };
    // To reach other nodes, a group has the network bandwidth of all its members on a node.
    double bandwidth = speed(machine_.node);
    if (leaves) {
      bandwidth = here * speed(machine_.network);
      if (here > 1) bandwidth = std::min(bandwidth, speed(machine_.node));
    }
    const double moved = comm::Moved(kind, ranks, transfer.bytes);
    const double rounds = kind == Transfer::kAllReduce ? 2 : 1;
    // A ring passes through every rank and leaves each node once.
    const int crossings = leaves ? nodes : 0;
    const double ring = rounds * (crossings * machine_.network.latency +
                                  std::max(0, ranks - 1 - crossings) * machine_.node.latency);
    const double tree = 2 * (std::ceil(std::log2(nodes)) * machine_.network.latency +
                             std::ceil(std::log2(here)) * machine_.node.latency);
    const bool has_tree = kind == Transfer::kAllReduce || kind == Transfer::kBroadcast;
    return {has_tree ? std::min(ring, tree) : ring, moved / bandwidth, leaves};
  }

 private:
  // Distance between neighbouring ranks of a group, in world ranks.
  int StrideOf(Group group) const {
    switch (group) {
      case Group::kShard:
      case Group::kContext:
        return shape_.tensor;
      case Group::kData:
        return shape_.tensor * shard_ranks_;
      case Group::kPipeline:
      case Group::kEmbedding:
        return shape_.data * shape_.context * shape_.tensor;
      default:
        return 1;
    }
  }
  // Most ranks of a group on one node; a group may straddle nodes.
  int RanksOnNode(Group group, int ranks) const {
    if (group == Group::kReplica) {
      return std::min({ranks, machine_.ranks_per_node, shape_.tensor});
    }
    return std::min(ranks, std::max(1, machine_.ranks_per_node / StrideOf(group)));
  }
  Cost OfMessage(const device::LoggedTransfer& transfer) const {
    const auto group = static_cast<Group>(transfer.group);
    // A shift around the ring: all wait for the member that sends to another node, if one does.
    bool leaves = RanksOnNode(group, transfer.ranks) < transfer.ranks;
    if (transfer.peer >= 0 && group == Group::kPipeline) {
      const int here = comm::Locate(rank_, shape_).pipeline;
      const int other = rank_ + (transfer.peer - here) * StrideOf(group);
      leaves = rank_ / machine_.ranks_per_node != other / machine_.ranks_per_node;
    }
    const Link& link = leaves ? machine_.network : machine_.node;
    return {link.latency, static_cast<double>(transfer.bytes) / link.bandwidth, leaves};
  }

  const Machine& machine_;
  const comm::GridShape shape_;
  const int shard_ranks_, rank_;
};

// Writes the tape of a planned rank. A kernel's time follows a roofline (Williams et al. 2009): the
// longer of the time for its operations and the time for its bytes.
class TapeWriter final : public device::WorkLog {
 public:
  TapeWriter(const Machine& machine, const Network& network, Tape& tape)
      : machine_(machine), network_(network), tape_(tape) {}

  void Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool fp8) override {
    constexpr double kFp8Bytes = 1;
    if (m == 0 || n == 0 || k == 0) return;
    const Products& products = machine_.Of(type, fp8);
    const auto rows = static_cast<double>(m), columns = static_cast<double>(n),
               depth = static_cast<double>(k);
    const auto filled = [&products](double size) { return size / (size + products.half); };
    const double rate =
        products.peak * products.efficiency * filled(rows) * filled(columns) * filled(depth);
    const double operands = rows * depth + depth * columns,
                 size = static_cast<double>(SizeOf(type));
    const double bytes = operands * (fp8 ? kFp8Bytes : size) + rows * columns * size;
    const double rounding = fp8 ? operands * (size + kFp8Bytes) / machine_.memory : 0;
    Compute(machine_.kernel_seconds + rounding +
                std::max(2 * rows * columns * depth / rate, bytes / machine_.memory),
            tape_.kernels.products);
  }
  void Attention(double flops, double bytes, Dtype type) override {
    const double rate = machine_.Of(type, false).peak * machine_.attention;
    Compute(machine_.kernel_seconds + std::max(flops / rate, bytes / machine_.memory),
            tape_.kernels.attention);
  }
  void Pass(double bytes) override {
    Compute(machine_.kernel_seconds + bytes / machine_.memory, tape_.kernels.passes);
  }
  int Start(const device::LoggedTransfer& transfer) override {
    const int number = static_cast<int>(tape_.transfers.size());
    tape_.transfers.push_back({transfer, network_.Of(transfer)});
    Put(TapeEvent::Kind::kStart, number);
    return number;
  }
  void Wait(int number) override { Put(TapeEvent::Kind::kWait, number); }
  void BeginTask(int kind, int micro_batch, int chunk) override {
    tape_.tasks.push_back({kind, micro_batch, chunk});
    Put(TapeEvent::Kind::kBeginTask, static_cast<int>(tape_.tasks.size()) - 1);
  }
  void EndTask() override {
    Put(TapeEvent::Kind::kEndTask, static_cast<int>(tape_.tasks.size()) - 1);
  }

 private:
  // Adds a kernel; neighbouring kernels form one event. sum: seconds of all kernels of its kind.
  void Compute(double seconds, double& sum) {
    std::vector<TapeEvent>& events = tape_.events;
    if (events.empty() || events.back().kind != TapeEvent::Kind::kCompute) {
      Put(TapeEvent::Kind::kCompute, 0);
    }
    events.back().seconds += seconds;
    sum += seconds;
  }
  void Put(TapeEvent::Kind kind, int index) { tape_.events.push_back({kind, index, 0}); }

  const Machine& machine_;
  const Network& network_;
  Tape& tape_;
};

// Identifies a transfer: its stage, and its index in the stage's tape.
struct Place {
  static constexpr int kNone = -1;
  int stage = kNone, transfer = kNone;
};
constexpr int kNone = Place::kNone;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kLeast = 1e-12;  // s; shorter rests are rounding errors

// A transfer in progress on its link; times in s.
struct Flow {
  int transfer = 0;
  double latency = 0, left = 0, began = 0;
  bool network = false;
};

enum class State : std::uint8_t { kUnknown, kStarted, kDone };

// State of a transfer on one stage.
struct StageTransfer {
  Cost cost;
  Place partner;             // a message's other end; kNone: no message between stages
  std::vector<Place> joint;  // its places on all stages; empty: on this stage alone
  State state = State::kUnknown;
  bool ready = false;  // all its ranks have started it
};

// State of one stage's rank in the simulation; times in s.
struct Stage {
  int number = 0;
  const Tape* tape = nullptr;
  std::size_t next = 0;  // index of the next event
  double now = 0;
  bool computes = false;
  double compute_left = 0;  // s, at full speed
  int awaited = kNone;      // index of the transfer it waits for
  double wait_began = 0, task_began = 0;
  std::vector<StageTransfer> transfers;
  std::map<int, std::deque<int>> queues;  // transfers to run in order, per group, payload and peer
  std::vector<Flow> flows;                // the transfers that run: heads of queues
  StageTimes times;
  double next_time = kNever;  // next end of its computation or a flow; stale if `changed`
  bool changed = true;

  bool Ended() const { return next == tape->events.size() && !computes && awaited == kNone; }
  const device::LoggedTransfer& What(int transfer) const {
    return At(tape->transfers, transfer).what;
  }
  std::deque<int>& QueueOf(int transfer) {
    constexpr int kKinds = 64;
    const device::LoggedTransfer& what = What(transfer);
    return queues[(what.group * kKinds + what.payload) * kKinds +
                  (what.peer >= 0 ? 1 + what.peer % (kKinds - 1) : 0)];
  }
};

class Engine {
 public:
  Engine(const Machine& machine, const std::vector<Tape>& tapes, bool slices)
      : machine_(machine), slices_(slices), stages_(tapes.size()) {
    for (std::size_t i = 0; i < tapes.size(); ++i) {
      Stage& stage = stages_[i];
      stage.number = static_cast<int>(i);
      stage.tape = &tapes[i];
      for (const TapeTransfer& transfer : tapes[i].transfers) {
        stage.transfers.emplace_back().cost = transfer.cost;
      }
    }
    MatchMessages();
    MatchJoint();
  }

  Simulated Run() {
    for (Stage& stage : stages_) Continue(stage);
    while (true) {
      for (Stage& stage : stages_) {
        if (std::exchange(stage.changed, false)) stage.next_time = NextTime(stage);
      }
      Stage& stage = *std::ranges::min_element(stages_, {}, &Stage::next_time);
      if (stage.next_time == kNever) {
        if (std::ranges::all_of(stages_, &Stage::Ended)) break;
        throw RunError("a simulated rank waits for ever", "This is a bug in Trireme.");
      }
      Advance(stage, stage.next_time);
      std::vector<int> ended;
      for (const Flow& flow : stage.flows) {
        if (flow.latency <= 0 && flow.left <= 0) ended.push_back(flow.transfer);
      }
      if (stage.computes && stage.compute_left <= 0) {
        stage.computes = false;
        Continue(stage);
      }
      for (const int transfer : ended) Done(stage, transfer);
    }
    for (Stage& stage : stages_) result_.stages.push_back(stage.times);
    return std::move(result_);
  }

 private:
  StageTransfer& Of(const Place& place) {
    return At(At(stages_, place.stage).transfers, place.transfer);
  }

  // Finds the other end of each message. Messages of one tag between two stages arrive in the order
  // in which they are sent. Throws RunError for a message that nobody receives.
  void MatchMessages() {
    using Key = std::tuple<int, int, int>;  // from, to, tag
    std::map<Key, std::vector<Place>> sent, received;
    for (const Stage& stage : stages_) {
      for (int i = 0; i < static_cast<int>(stage.transfers.size()); ++i) {
        const device::LoggedTransfer& what = stage.What(i);
        if (static_cast<Group>(what.group) != Group::kPipeline || what.peer < 0) continue;
        if (IsReceive(what)) {
          received[{what.peer, stage.number, what.tag}].push_back({stage.number, i});
        } else {
          sent[{stage.number, what.peer, what.tag}].push_back({stage.number, i});
        }
      }
    }
    for (const auto& [key, sends] : sent) {
      const std::vector<Place>& receives = received[key];
      if (sends.size() != receives.size()) {
        throw RunError("a simulated message that nobody takes", "This is a bug in Trireme.");
      }
      for (std::size_t k = 0; k < sends.size(); ++k) {
        StageTransfer &send = Of(sends[k]), &receive = Of(receives[k]);
        send.partner = receives[k];
        receive.partner = sends[k];
        receive.cost = send.cost;  // the sender's cost counts
      }
    }
  }

  // Finds the places of each transfer that runs over several stages: the i-th transfer of a group
  // on one stage is the i-th on the others.
  void MatchJoint() {
    std::map<int, std::vector<std::vector<Place>>> found;
    for (const Stage& stage : stages_) {
      std::map<int, std::size_t> count;
      for (int i = 0; stages_.size() > 1 && i < static_cast<int>(stage.transfers.size()); ++i) {
        const int group = stage.What(i).group;
        const auto kind = static_cast<Group>(group);
        if (kind != Group::kWorld && kind != Group::kReplica && kind != Group::kEmbedding) continue;
        const std::size_t at = count[group]++;
        std::vector<std::vector<Place>>& list = found[group];
        if (list.size() <= at) list.resize(at + 1);
        list[at].push_back({stage.number, i});
      }
    }
    for (const auto& [group, list] : found) {
      for (const std::vector<Place>& places : list) {
        for (const Place& place : places) Of(place).joint = places;
      }
    }
    for (Stage& stage : stages_) {
      for (StageTransfer& transfer : stage.transfers) transfer.ready = transfer.joint.empty();
    }
  }

  // Speed of a stage's computation, and of a flow, as a share of the undisturbed speed.
  double ComputeRate(const Stage& stage) const {
    if (machine_.interference <= 0) return 1;
    const bool busy =
        std::ranges::any_of(stage.flows, [](const Flow& f) { return f.latency <= 0; });
    return busy ? 1 - machine_.interference : 1;
  }
  double FlowRate(const Stage& stage, const Flow& flow) const {
    if (!machine_.background && stage.computes) return 0;
    if (flow.latency > 0) return 1;
    const auto sharing = std::ranges::count_if(stage.flows, [&flow](const Flow& other) {
      return other.latency <= 0 && other.network == flow.network;
    });
    return 1 / static_cast<double>(sharing);
  }
  double NextTime(const Stage& stage) const {
    double after = kNever;
    if (stage.computes) after = stage.compute_left / ComputeRate(stage);
    for (const Flow& flow : stage.flows) {
      const double rate = FlowRate(stage, flow);
      if (rate > 0) after = std::min(after, (flow.latency > 0 ? flow.latency : flow.left) / rate);
    }
    return stage.now + after;
  }

  // Advances a stage to `time`. Remainders up to kLeast become 0: they are rounding errors.
  void Advance(Stage& stage, double time) {
    stage.changed = true;
    const double passed = time - stage.now;
    const auto lessen = [passed](double& left, double rate) {
      left -= passed * rate;
      if (left <= kLeast) left = 0;
    };
    const double compute = ComputeRate(stage);
    rates_.clear();
    for (const Flow& flow : stage.flows) rates_.push_back(FlowRate(stage, flow));
    if (stage.computes) {
      lessen(stage.compute_left, compute);
      stage.times.compute += passed;
    }
    for (std::size_t i = 0; i < stage.flows.size(); ++i) {
      Flow& flow = stage.flows[i];
      lessen(flow.latency > 0 ? flow.latency : flow.left, rates_[i]);
    }
    stage.now = time;
  }

  void Enqueue(Stage& stage, int transfer) {
    std::deque<int>& queue = stage.QueueOf(transfer);
    queue.push_back(transfer);
    if (queue.size() == 1) StartHead(stage, queue);
  }
  static void StartHead(Stage& stage, std::deque<int>& queue) {
    stage.changed = true;
    if (queue.empty() || !At(stage.transfers, queue.front()).ready) return;
    const Cost& cost = At(stage.transfers, queue.front()).cost;
    // Even a transfer that costs nothing lasts kLeast, so that the simulation finds its end.
    stage.flows.push_back({.transfer = queue.front(),
                           .latency = cost.latency,
                           .left = std::max(cost.seconds, kLeast),
                           .began = stage.now,
                           .network = cost.network});
  }

  void Start(Stage& stage, int transfer) {
    StageTransfer& one = At(stage.transfers, transfer);
    if (one.state == State::kUnknown) one.state = State::kStarted;
    const auto kind = static_cast<Transfer>(stage.What(transfer).transfer);
    if (kind == Transfer::kReceive) return;
    if (kind == Transfer::kSend && one.partner.stage != kNone && !machine_.background) {
      one.state = State::kDone;
      return Deliver(one.partner, stage.now);
    }
    Enqueue(stage, transfer);
    for (const Place& place : one.joint) {
      if (Of(place).state == State::kUnknown) return;
    }
    for (const Place& place : one.joint) {
      Stage& other = At(stages_, place.stage);
      Advance(other, stage.now);
      Of(place).ready = true;
      std::deque<int>& queue = other.QueueOf(place.transfer);
      if (!queue.empty() && queue.front() == place.transfer) StartHead(other, queue);
    }
  }

  // The sender's part of a message ends at `time`: completes or starts the receive.
  void Deliver(const Place& receive, double time) {
    Stage& stage = At(stages_, receive.stage);
    Advance(stage, time);
    if (machine_.background) {
      Of(receive).state = State::kDone;
      if (stage.awaited == receive.transfer) Finish(stage);
    } else if (stage.awaited == receive.transfer) {
      Enqueue(stage, receive.transfer);
    }
  }

  // Begins the wait for a transfer; true if it is done already, so that the stage goes on.
  bool Await(Stage& stage, int transfer) {
    const StageTransfer& one = At(stage.transfers, transfer);
    if (one.state == State::kDone) return true;
    stage.awaited = transfer;
    stage.wait_began = stage.now;
    if (!machine_.background && IsReceive(stage.What(transfer)) && one.partner.stage != kNone &&
        Of(one.partner).state == State::kDone) {
      Enqueue(stage, transfer);
    }
    return false;
  }

  // Ends the present wait of a stage at stage.now.
  void Finish(Stage& stage) {
    const device::LoggedTransfer& what = stage.What(stage.awaited);
    const bool input = static_cast<Group>(what.group) == Group::kPipeline && IsReceive(what);
    (input ? stage.times.bubble : At(stage.times.exposed, what.group)) +=
        stage.now - stage.wait_began;
    Add(SimulatedSlice::Kind::kWait, stage, stage.awaited, stage.wait_began);
    stage.awaited = kNone;
    Continue(stage);
  }

  void Done(Stage& stage, int transfer) {
    StageTransfer& one = At(stage.transfers, transfer);
    const auto flow = std::ranges::find(stage.flows, transfer, &Flow::transfer);
    Add(SimulatedSlice::Kind::kTransfer, stage, transfer, flow->began);
    stage.flows.erase(flow);
    one.state = State::kDone;
    std::deque<int>& queue = stage.QueueOf(transfer);
    queue.pop_front();
    StartHead(stage, queue);
    if (!IsReceive(stage.What(transfer)) && one.partner.stage != kNone) {
      Deliver(one.partner, stage.now);
    }
    if (stage.awaited == transfer) Finish(stage);
  }

  // Runs the tape's events up to the next one that takes time.
  void Continue(Stage& stage) {
    stage.changed = true;
    while (stage.next < stage.tape->events.size()) {
      const TapeEvent& event = stage.tape->events[stage.next++];
      switch (event.kind) {
        case TapeEvent::Kind::kCompute:
          if (event.seconds <= 0) break;
          stage.compute_left = event.seconds;
          stage.computes = true;
          return;
        case TapeEvent::Kind::kStart:
          Start(stage, event.index);
          break;
        case TapeEvent::Kind::kWait:
          if (!Await(stage, event.index)) return;
          break;
        case TapeEvent::Kind::kBeginTask:
          stage.task_began = stage.now;
          break;
        case TapeEvent::Kind::kEndTask:
          Add(SimulatedSlice::Kind::kTask, stage, event.index, stage.task_began);
          break;
      }
    }
    stage.times.end = stage.now;
  }

  // Records what the stage has done from `begin` until now.
  void Add(SimulatedSlice::Kind kind, const Stage& stage, int index, double begin) {
    if (slices_) result_.slices.push_back({kind, stage.number, index, begin, stage.now});
  }

  const Machine& machine_;
  const bool slices_;
  std::vector<Stage> stages_;
  std::vector<double> rates_;  // scratch of Advance
  Simulated result_;
};

// The data rank with the largest share of a batch.
int BusiestDataRank(const train::Plan& plan, std::int64_t batch) {
  int busiest = 0;
  std::int64_t most = 0;
  for (int rank = 0; rank < plan.grid.data; ++rank) {
    const std::int64_t share = PartOf(batch, rank, plan.grid.data).Size();
    if (share > most) std::tie(busiest, most) = std::tuple(rank, share);
  }
  return busiest;
}

}  // namespace

double Simulated::Makespan() const {
  double end = 0;
  for (const StageTimes& stage : stages) end = std::max(end, stage.end);
  return end;
}

Simulated Play(const Machine& machine, const std::vector<Tape>& tapes, bool slices) {
  return Engine(machine, tapes, slices).Run();
}

PlayedStep PlayStep(const train::Plan& plan, const Machine& machine, const train::StepShape& shape,
                    bool slices) {
  PlayedStep step;
  const int data = BusiestDataRank(plan, shape.sequences);
  for (int stage = 0; stage < plan.grid.pipeline; ++stage) {
    const int rank =
        comm::RankAt({.pipeline = stage, .data = data, .context = 0, .tensor = 0}, plan.grid);
    const Network network(machine, plan.grid, plan.sharing, rank);
    TapeWriter writer(machine, network, step.tapes.emplace_back());
    step.ranks.push_back(train::PlanRank(plan, rank, shape, &writer));
  }
  step.simulated = Play(machine, step.tapes, slices);
  return step;
}

}  // namespace trireme::predict
