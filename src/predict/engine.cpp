// Engine: each stage has a computation, transfers on two links, and the time up to which both are
// known.
#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::predict {

// Network: ring and tree algorithms. Bandwidth terms are those of Thakur et al. 2005 (comm::Moved);
// a ring takes n - 1 steps (an all-reduce twice as many), a tree 2 log2 n.

using comm::Group, comm::Transfer;

Network::Network(const Machine& machine, const comm::GridShape& shape,
                 const comm::GridOptions& options, int rank)
    : machine_(machine),
      shape_(shape),
      shard_ranks_(comm::ShardRanks(shape, options)),
      rank_(rank) {}

int Network::StrideOf(Group group) const {
  const int replica = shape_.data * shape_.context * shape_.tensor;
  switch (group) {
    case Group::kShard:
    case Group::kContext:
      return shape_.tensor;
    case Group::kData:
      return shape_.tensor * shard_ranks_;
    case Group::kPipeline:
    case Group::kEmbedding:
      return replica;
    case Group::kWorld:
    case Group::kTensor:
    case Group::kKeyValue:
    case Group::kReplica:
      break;
  }
  return 1;
}

// At most; groups may lie across nodes' borders.
int Network::RanksOnNode(Group group, int ranks) const {
  if (group == Group::kReplica) {
    return std::min({ranks, machine_.ranks_per_node, shape_.tensor});
  }
  const int room = std::max(1, machine_.ranks_per_node / StrideOf(group));
  return std::min(ranks, room);
}

Cost Network::OfMessage(const device::LoggedTransfer& transfer) const {
  const auto group = static_cast<Group>(transfer.group);
  // A shift around the ring: some member sends to another node, and all wait for it.
  bool leaves = RanksOnNode(group, transfer.ranks) < transfer.ranks;
  if (transfer.peer >= 0 && group == Group::kPipeline) {
    const int here = comm::Locate(rank_, shape_).pipeline;
    const int other = rank_ + (transfer.peer - here) * StrideOf(group);
    leaves = rank_ / machine_.ranks_per_node != other / machine_.ranks_per_node;
  }
  const Link& link = leaves ? machine_.network : machine_.node;
  return {link.latency, static_cast<double>(transfer.bytes) / link.bandwidth, leaves};
}

Cost Network::Of(const device::LoggedTransfer& transfer) const {
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
  // The members of a node share their adapters.
  double bandwidth = speed(machine_.node);
  if (leaves) {
    bandwidth = here * speed(machine_.network);
    if (here > 1) bandwidth = std::min(bandwidth, speed(machine_.node));
  }
  const double moved = comm::Moved(kind, ranks, transfer.bytes);
  const double rounds = kind == Transfer::kAllReduce ? 2 : 1;
  // A ring goes through every rank, and leaves each node once.
  const int crossings = leaves ? nodes : 0;
  const double ring = rounds * (crossings * machine_.network.latency +
                                std::max(0, ranks - 1 - crossings) * machine_.node.latency);
  const double tree = 2 * (std::ceil(std::log2(nodes)) * machine_.network.latency +
                           std::ceil(std::log2(here)) * machine_.node.latency);
  const bool has_tree = kind == Transfer::kAllReduce || kind == Transfer::kBroadcast;
  return {has_tree ? std::min(ring, tree) : ring, moved / bandwidth, leaves};
}

// TapeWriter: kernels become seconds by a roofline (Williams et al. 2009): the slower of their
// operations and their bytes.

namespace {
constexpr double kFp8Bytes = 1;
}

double ProductSeconds(const Machine& machine, std::int64_t m, std::int64_t n, std::int64_t k,
                      Dtype type, bool fp8) {
  const Products& products = machine.Of(type, fp8);
  const auto rows = static_cast<double>(m), columns = static_cast<double>(n),
             depth = static_cast<double>(k);
  const auto filled = [&products](double size) { return size / (size + products.half); };
  const double rate =
      products.peak * products.efficiency * filled(rows) * filled(columns) * filled(depth);
  const double operands = rows * depth + depth * columns, size = static_cast<double>(SizeOf(type));
  const double bytes = operands * (fp8 ? kFp8Bytes : size) + rows * columns * size;
  const double rounding = fp8 ? operands * (size + kFp8Bytes) / machine.memory : 0;
  return machine.kernel_seconds + rounding +
         std::max(2 * rows * columns * depth / rate, bytes / machine.memory);
}

double AttentionSeconds(const Machine& machine, double flops, double bytes, Dtype type) {
  const double rate = machine.Of(type, false).peak * machine.attention;
  return machine.kernel_seconds + std::max(flops / rate, bytes / machine.memory);
}

double PassSeconds(const Machine& machine, double bytes) {
  return machine.kernel_seconds + bytes / machine.memory;
}

// Neighbouring kernels are one piece.
void TapeWriter::Compute(double seconds) {
  std::vector<TapeEvent>& events = tape_.events;
  if (events.empty() || events.back().kind != TapeEvent::Kind::kCompute) {
    Put(TapeEvent::Kind::kCompute, 0);
  }
  events.back().seconds += seconds;
}

void TapeWriter::Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool fp8) {
  if (m == 0 || n == 0 || k == 0) return;
  const double seconds = ProductSeconds(machine_, m, n, k, type, fp8);
  tape_.product_seconds += seconds;
  Compute(seconds);
}

void TapeWriter::Attention(double flops, double bytes, Dtype type) {
  const double seconds = AttentionSeconds(machine_, flops, bytes, type);
  tape_.attention_seconds += seconds;
  Compute(seconds);
}

void TapeWriter::Pass(double bytes) {
  const double seconds = PassSeconds(machine_, bytes);
  tape_.pass_seconds += seconds;
  Compute(seconds);
}

int TapeWriter::Start(const device::LoggedTransfer& transfer) {
  const int number = static_cast<int>(tape_.transfers.size());
  tape_.transfers.push_back({transfer, network_.Of(transfer)});
  Put(TapeEvent::Kind::kStart, number);
  return number;
}

void TapeWriter::Wait(int number) { Put(TapeEvent::Kind::kWait, number); }

void TapeWriter::BeginTask(int kind, int micro_batch, int chunk) {
  tape_.tasks.push_back({kind, micro_batch, chunk});
  Put(TapeEvent::Kind::kBeginTask, static_cast<int>(tape_.tasks.size()) - 1);
}

void TapeWriter::EndTask() {
  Put(TapeEvent::Kind::kEndTask, static_cast<int>(tape_.tasks.size()) - 1);
}

// Matches: by sender, receiver and tag; by group.

namespace {

using comm::Group, comm::Transfer;

bool SpansStages(Group group) {
  return group == Group::kWorld || group == Group::kReplica || group == Group::kEmbedding;
}

template <typename Item>
std::vector<std::vector<Item>> ForEach(const std::vector<Tape>& tapes) {
  std::vector<std::vector<Item>> items;
  for (const Tape& tape : tapes) items.emplace_back(tape.transfers.size());
  return items;
}

template <typename Item>
Item& At(std::vector<std::vector<Item>>& items, const Place& place) {
  return items[static_cast<std::size_t>(place.stage)][static_cast<std::size_t>(place.transfer)];
}

}  // namespace

bool IsReceive(const device::LoggedTransfer& what) {
  return static_cast<Transfer>(what.transfer) == Transfer::kReceive;
}

Places MatchMessages(const std::vector<Tape>& tapes) {
  using Key = std::tuple<int, int, int>;  // from, to, tag
  std::map<Key, std::vector<Place>> sent, received;
  for (int i = 0; i < static_cast<int>(tapes.size()); ++i) {
    const std::vector<TapeTransfer>& transfers = tapes[static_cast<std::size_t>(i)].transfers;
    for (int j = 0; j < static_cast<int>(transfers.size()); ++j) {
      const device::LoggedTransfer& what = transfers[static_cast<std::size_t>(j)].what;
      if (static_cast<Group>(what.group) != Group::kPipeline || what.peer < 0) continue;
      if (IsReceive(what)) {
        received[{what.peer, i, what.tag}].push_back({i, j});
      } else {
        sent[{i, what.peer, what.tag}].push_back({i, j});
      }
    }
  }
  Places partners = ForEach<Place>(tapes);
  for (const auto& [key, sends] : sent) {
    const std::vector<Place>& receives = received[key];
    if (sends.size() != receives.size()) {
      throw RunError("a simulated message that nobody takes", "This is a bug in Trireme.");
    }
    for (std::size_t k = 0; k < sends.size(); ++k) {
      At(partners, sends[k]) = receives[k];
      At(partners, receives[k]) = sends[k];
    }
  }
  return partners;
}

JointPlaces MatchJoint(const std::vector<Tape>& tapes) {
  std::map<int, std::vector<std::vector<Place>>> found;  // by group, in order
  for (int i = 0; tapes.size() > 1 && i < static_cast<int>(tapes.size()); ++i) {
    const std::vector<TapeTransfer>& transfers = tapes[static_cast<std::size_t>(i)].transfers;
    std::map<int, std::size_t> count;
    for (int j = 0; j < static_cast<int>(transfers.size()); ++j) {
      const int group = transfers[static_cast<std::size_t>(j)].what.group;
      if (!SpansStages(static_cast<Group>(group))) continue;
      const std::size_t at = count[group]++;
      std::vector<std::vector<Place>>& list = found[group];
      if (list.size() <= at) list.resize(at + 1);
      list[at].push_back({i, j});
    }
  }
  JointPlaces joint = ForEach<std::vector<Place>>(tapes);
  for (const auto& [group, list] : found) {
    for (const std::vector<Place>& places : list) {
      for (const Place& place : places) At(joint, place) = places;
    }
  }
  return joint;
}

namespace {

using comm::Group, comm::Transfer;

constexpr double kLeast = 1e-12;  // s: less is rounding

class Engine {
 public:
  Engine(const Machine& machine, const std::vector<Tape>& tapes, bool slices);
  Simulated Run();

 private:
  // Speed of a stage's computation and of a flow, of their speeds alone.
  double ComputeRate(const Stage& stage) const;
  double FlowRate(const Stage& stage, const Flow& flow) const;
  double NextTime(const Stage& stage) const;
  void Advance(Stage& stage, double time);
  void Finish(int number);
  void Continue(int number);
  void Start(int number, int transfer);
  bool Await(int number, int transfer);
  void Enqueue(int number, int transfer);
  void StartHead(int number, std::deque<int>& queue);
  void Done(int number, int transfer);
  void Deliver(const Place& receive, double time);
  int QueueOf(const device::LoggedTransfer& what) const;
  void Add(SimulatedSlice::Kind kind, int stage, int index, double begin, double end);

  const Machine& machine_;
  const bool slices_;
  std::vector<Stage> stages_;
  const Places partners_;                 // of messages
  const JointPlaces joint_;               // the same transfer on all its stages
  std::vector<std::vector<Cost>> costs_;  // [stage][transfer]
  std::vector<double> rates_;             // of Advance
  Simulated result_;
};

Engine::Engine(const Machine& machine, const std::vector<Tape>& tapes, bool slices)
    : machine_(machine),
      slices_(slices),
      stages_(tapes.size()),
      partners_(MatchMessages(tapes)),
      joint_(MatchJoint(tapes)),
      costs_(tapes.size()) {
  for (std::size_t i = 0; i < tapes.size(); ++i) {
    const std::vector<TapeTransfer>& transfers = tapes[i].transfers;
    Stage& stage = stages_[i];
    stage.tape = &tapes[i];
    stage.states.assign(transfers.size(), State::kUnknown);
    for (std::size_t j = 0; j < transfers.size(); ++j) {
      stage.ready.push_back(joint_[i][j].empty());
      // A message costs what its sender says.
      const Place from = partners_[i][j];
      const bool receives = from.stage != kNone && IsReceive(transfers[j].what);
      costs_[i].push_back(receives ? tapes[static_cast<std::size_t>(from.stage)]
                                         .transfers[static_cast<std::size_t>(from.transfer)]
                                         .cost
                                   : transfers[j].cost);
    }
  }
}

double Engine::ComputeRate(const Stage& stage) const {
  if (machine_.interference <= 0) return 1;
  const bool busy = std::ranges::any_of(stage.flows, [](const Flow& f) { return f.latency <= 0; });
  return busy ? 1 - machine_.interference : 1;
}

double Engine::FlowRate(const Stage& stage, const Flow& flow) const {
  if (!machine_.background && stage.computes) return 0;
  if (flow.latency > 0) return 1;
  const auto sharing = std::ranges::count_if(stage.flows, [&flow](const Flow& other) {
    return other.latency <= 0 && other.network == flow.network;
  });
  return 1 / static_cast<double>(sharing);
}

double Engine::NextTime(const Stage& stage) const {
  double after = kNever;
  if (stage.computes) after = stage.compute_left / ComputeRate(stage);
  for (const Flow& flow : stage.flows) {
    const double rate = FlowRate(stage, flow);
    if (rate > 0) after = std::min(after, (flow.latency > 0 ? flow.latency : flow.left) / rate);
  }
  return stage.now + after;
}

// Moves a stage on to `time`; an end at that time, but for rounding, leaves nothing at all.
void Engine::Advance(Stage& stage, double time) {
  stage.changed = true;
  const double passed = time - stage.now;
  const auto less = [passed](double left, double rate) {
    const double now = left - passed * rate;
    return now <= kLeast ? 0 : now;
  };
  const double compute = ComputeRate(stage);
  std::vector<double>& rates = rates_;
  rates.clear();
  for (const Flow& flow : stage.flows) rates.push_back(FlowRate(stage, flow));
  if (stage.computes) {
    stage.compute_left = less(stage.compute_left, compute);
    stage.times.compute += passed;
  }
  for (std::size_t i = 0; i < stage.flows.size(); ++i) {
    Flow& flow = stage.flows[i];
    (flow.latency > 0 ? flow.latency : flow.left) =
        less(flow.latency > 0 ? flow.latency : flow.left, rates[i]);
  }
  stage.now = time;
}

int Engine::QueueOf(const device::LoggedTransfer& what) const {
  constexpr int kKinds = 64;
  const bool message = what.peer >= 0;
  return (what.group * kKinds + what.payload) * kKinds +
         (message ? 1 + what.peer % (kKinds - 1) : 0);
}

void Engine::Enqueue(int number, int transfer) {
  Stage& stage = stages_[static_cast<std::size_t>(number)];
  std::deque<int>& queue =
      stage.queues[QueueOf(stage.tape->transfers[static_cast<std::size_t>(transfer)].what)];
  queue.push_back(transfer);
  if (queue.size() == 1) StartHead(number, queue);
}

void Engine::StartHead(int number, std::deque<int>& queue) {
  Stage& stage = stages_[static_cast<std::size_t>(number)];
  stage.changed = true;
  if (queue.empty() || !stage.ready[static_cast<std::size_t>(queue.front())]) return;
  const int transfer = queue.front();
  const Cost& cost = costs_[static_cast<std::size_t>(number)][static_cast<std::size_t>(transfer)];
  // Never instantaneous: its end is an event.
  stage.flows.push_back({.transfer = transfer,
                         .latency = cost.latency,
                         .left = std::max(cost.seconds, kLeast),
                         .began = stage.now,
                         .network = cost.network});
}

void Engine::Start(int number, int transfer) {
  Stage& stage = stages_[static_cast<std::size_t>(number)];
  const auto at = static_cast<std::size_t>(transfer);
  const TapeTransfer& one = stage.tape->transfers[at];
  if (stage.states[at] == State::kUnknown) stage.states[at] = State::kStarted;
  const auto kind = static_cast<Transfer>(one.what.transfer);
  const Place partner = partners_[static_cast<std::size_t>(number)][at];
  if (kind == Transfer::kReceive) return;
  if (kind == Transfer::kSend && partner.stage != kNone && !machine_.background) {
    stage.states[at] = State::kDone;
    return Deliver(partner, stage.now);
  }
  const std::vector<Place>& joint = joint_[static_cast<std::size_t>(number)][at];
  Enqueue(number, transfer);
  if (joint.empty()) return;
  for (const Place& place : joint) {
    const Stage& other = stages_[static_cast<std::size_t>(place.stage)];
    if (other.states[static_cast<std::size_t>(place.transfer)] == State::kUnknown) return;
  }
  for (const Place& place : joint) {
    Stage& other = stages_[static_cast<std::size_t>(place.stage)];
    Advance(other, stage.now);
    other.ready[static_cast<std::size_t>(place.transfer)] = true;
    const device::LoggedTransfer& what =
        other.tape->transfers[static_cast<std::size_t>(place.transfer)].what;
    std::deque<int>& queue = other.queues[QueueOf(what)];
    if (!queue.empty() && queue.front() == place.transfer) StartHead(place.stage, queue);
  }
}

// A message is on its way to a receiver that waits, or will.
void Engine::Deliver(const Place& receive, double time) {
  Stage& stage = stages_[static_cast<std::size_t>(receive.stage)];
  Advance(stage, time);
  const auto at = static_cast<std::size_t>(receive.transfer);
  if (machine_.background) {
    stage.states[at] = State::kDone;
    if (stage.awaited == receive.transfer) Finish(receive.stage);
  } else if (stage.awaited == receive.transfer) {
    Enqueue(receive.stage, receive.transfer);
  }
}

// Whether the stage goes on at once.
bool Engine::Await(int number, int transfer) {
  Stage& stage = stages_[static_cast<std::size_t>(number)];
  const auto at = static_cast<std::size_t>(transfer);
  if (stage.states[at] == State::kDone) return true;
  stage.awaited = transfer;
  stage.wait_began = stage.now;
  const Place partner = partners_[static_cast<std::size_t>(number)][at];
  const auto kind = static_cast<Transfer>(stage.tape->transfers[at].what.transfer);
  if (!machine_.background && kind == Transfer::kReceive && partner.stage != kNone) {
    const Stage& sender = stages_[static_cast<std::size_t>(partner.stage)];
    if (sender.states[static_cast<std::size_t>(partner.transfer)] == State::kDone) {
      Enqueue(number, transfer);
    }
  }
  return false;
}

// Ends the wait of a stage, whose time is the present.
void Engine::Finish(int number) {
  Stage& stage = stages_[static_cast<std::size_t>(number)];
  const device::LoggedTransfer& what =
      stage.tape->transfers[static_cast<std::size_t>(stage.awaited)].what;
  const double waited = stage.now - stage.wait_began;
  const bool input = static_cast<Group>(what.group) == Group::kPipeline &&
                     static_cast<Transfer>(what.transfer) == Transfer::kReceive;
  (input ? stage.times.bubble : stage.times.exposed[static_cast<std::size_t>(what.group)]) +=
      waited;
  Add(SimulatedSlice::Kind::kWait, number, stage.awaited, stage.wait_began, stage.now);
  stage.awaited = kNone;
  Continue(number);
}

void Engine::Done(int number, int transfer) {
  Stage& stage = stages_[static_cast<std::size_t>(number)];
  const auto at = static_cast<std::size_t>(transfer);
  const TapeTransfer& one = stage.tape->transfers[at];
  const auto flow = std::ranges::find(stage.flows, transfer, &Flow::transfer);
  Add(SimulatedSlice::Kind::kTransfer, number, transfer, flow->began, stage.now);
  stage.flows.erase(flow);
  stage.states[at] = State::kDone;
  std::deque<int>& queue = stage.queues[QueueOf(one.what)];
  queue.pop_front();
  StartHead(number, queue);
  const Place partner = partners_[static_cast<std::size_t>(number)][at];
  if (static_cast<Transfer>(one.what.transfer) == Transfer::kSend && partner.stage != kNone) {
    Deliver(partner, stage.now);
  }
  if (stage.awaited == transfer) Finish(number);
}

// Events of the tape up to the next one that takes time.
void Engine::Continue(int number) {
  Stage& stage = stages_[static_cast<std::size_t>(number)];
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
        Start(number, event.index);
        break;
      case TapeEvent::Kind::kWait:
        if (!Await(number, event.index)) return;
        break;
      case TapeEvent::Kind::kBeginTask:
        stage.task_began = stage.now;
        break;
      case TapeEvent::Kind::kEndTask:
        Add(SimulatedSlice::Kind::kTask, number, event.index, stage.task_began, stage.now);
        break;
    }
  }
  stage.times.end = stage.now;
}

void Engine::Add(SimulatedSlice::Kind kind, int stage, int index, double begin, double end) {
  if (slices_) result_.slices.push_back({kind, stage, index, begin, end});
}

Simulated Engine::Run() {
  const int count = static_cast<int>(stages_.size());
  for (int i = 0; i < count; ++i) Continue(i);
  while (true) {
    int first = kNone;
    double time = kNever;
    for (int i = 0; i < count; ++i) {
      Stage& stage = stages_[static_cast<std::size_t>(i)];
      if (stage.changed) stage.next_time = NextTime(stage);
      stage.changed = false;
      if (stage.next_time < time) std::tie(first, time) = std::tuple(i, stage.next_time);
    }
    if (first == kNone) {
      if (std::ranges::all_of(stages_, &Stage::Ended)) break;
      throw RunError("a simulated rank waits for ever", "This is a bug in Trireme.");
    }
    Stage& stage = stages_[static_cast<std::size_t>(first)];
    Advance(stage, time);
    std::vector<int> ended;
    for (const Flow& flow : stage.flows) {
      if (flow.latency <= 0 && flow.left <= 0) ended.push_back(flow.transfer);
    }
    if (stage.computes && stage.compute_left <= 0) {
      stage.computes = false;
      Continue(first);
    }
    for (const int transfer : ended) Done(first, transfer);
  }
  for (Stage& stage : stages_) result_.stages.push_back(stage.times);
  return std::move(result_);
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

}  // namespace trireme::predict
