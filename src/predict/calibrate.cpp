// Calibrate: times steps and links, fits the description, fills in facts of the node.
#include "trireme/predict/calibrate.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "engine.hpp"
#include "fit.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/options.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/batch_loader.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::predict {

namespace {

// MeasureLinks: times all-reduces of one element and of 4 MiB, and all-gathers of 4 MiB.

constexpr std::int64_t kElements = std::int64_t{1} << 20;  // 4 MiB
constexpr std::int64_t kLinkBytes = kElements * 4;

// Speeds over a group. A bandwidth is the bytes that a rank sends (comm::Moved) divided by seconds.
struct Speeds {
  double reduction = 0, gather = 0;  // bytes/s
  double latency = 0;                // s, of an all-reduce of one element
};

double MedianOf(std::vector<double>& seconds) {
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

// Seconds that the slowest rank takes, median over repetitions.
double Slowest(const comm::Communicator& group, const std::function<void()>& transfer) {
  constexpr int kTimes = 7;
  std::vector<double> seconds(kTimes);
  transfer();  // untimed: connects the ranks
  for (double& each : seconds) {
    group.Barrier();
    const double start = Seconds();
    transfer();
    each = group.Max(Seconds() - start);
  }
  return MedianOf(seconds);
}

Speeds SpeedsOf(const Subject& subject, const comm::Communicator& group) {
  const int ranks = group.Size();
  comm::ProcessGrid grid(group, {.pipeline = 1, .data = ranks, .context = 1, .tensor = 1});
  if (subject.use_gpu) subject.use_gpu(grid);
  const comm::Collectives& data = grid.Over(comm::Group::kData);
  device::Arena arena(kLinkBytes, subject.stream.Where());
  void* const operand = arena.Allocate(kLinkBytes);
  device::Repeat(subject.stream, std::vector<std::byte>(4), operand, kLinkBytes);
  const auto done = [&] { device::Synchronise(subject.stream); };
  done();
  const auto sum = [&](std::int64_t elements) {
    return Slowest(group, [&, elements] {
      data.StartAllReduce(Dtype::kFloat32, operand, elements).Wait();
      done();
    });
  };
  std::vector<std::int64_t> parts(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    parts[static_cast<std::size_t>(rank)] = PartOf(kElements, rank, ranks).Size();
  }
  const double gather = Slowest(group, [&] {
    data.StartAllGatherInPlace(Dtype::kFloat32, operand, parts).Wait();
    done();
  });
  Speeds speeds;
  speeds.latency = sum(1);
  const auto speed = [&](comm::Transfer transfer, double seconds) {
    const double rest = std::max(seconds - speeds.latency, 0.1 * seconds);
    return comm::Moved(transfer, ranks, kLinkBytes) / rest;
  };
  speeds.reduction = speed(comm::Transfer::kAllReduce, sum(kElements));
  speeds.gather = speed(comm::Transfer::kAllGather, gather);
  return speeds;
}

// Steps of an all-reduce over so many ranks or nodes.
double StepsOf(int ranks) { return 2 * std::ceil(std::log2(ranks)); }

// Sets machine.node and machine.network; machine.assumptions says what could not be measured.
// Collective. Runs all-reduces and all-gathers over each node, then over the world, as training
// does, and solves the simulation's formulas for the links.
void MeasureLinks(const Subject& subject, Machine& machine) {
  const comm::Communicator& world = subject.world;
  const int node_ranks = static_cast<int>(world.Max(std::int64_t{subject.node.Size()}));
  const int nodes = static_cast<int>(CeilDivide(world.Size(), node_ranks));
  // All nodes measure at the same time; the slowest counts.
  Speeds inner;
  if (node_ranks > 1 && subject.node.Size() > 1) inner = SpeedsOf(subject, subject.node);
  const auto least = [&](double value) {
    return -world.Max(value > 0 ? -value : -std::numeric_limits<double>::infinity());
  };
  Link& node = machine.node;
  if (node_ranks > 1) {
    node.bandwidth = least(inner.gather);
    node.reduction = least(inner.reduction);
    node.latency = world.Max(inner.latency) / StepsOf(node_ranks);
  } else {
    // Each byte is read and written.
    node.bandwidth = machine.memory / 2;
    machine.assumptions.emplace_back("links of a node: half its memory's speed, for want of ranks");
  }
  machine.network = node;
  if (nodes > 1) {
    const Speeds outer = SpeedsOf(subject, world);
    const double shared = node_ranks;  // all ranks of a node send at once
    machine.network.bandwidth = outer.gather / shared;
    machine.network.reduction = outer.reduction / shared;
    const double inside = node_ranks > 1 ? node.latency * StepsOf(node_ranks) : 0;
    machine.network.latency = std::max(0.0, outer.latency - inside) / StepsOf(nodes);
  } else {
    machine.assumptions.emplace_back("the network: as fast as a node inside, for want of nodes");
  }
}

// MeasureSteps: times models whose steps differ in their shares of products, attention, passes over
// memory and small kernels, so that a fit can tell these apart.

struct Shape {
  int dim, heads, layers, ffn;
  std::int64_t length, batch, vocabulary;
  bool llama;    // RMSNorm, SwiGLU, rotary positions; else LayerNorm, GELU, learned ones
  bool shortly;  // part of a short calibration, too
};
constexpr Shape kOfCpu[] = {
    {32, 4, 4, 128, 32, 8, 256, false, true},    {64, 4, 2, 256, 64, 16, 512, false, true},
    {64, 2, 2, 256, 1024, 2, 256, false, true},  {128, 4, 2, 512, 128, 8, 8192, false, true},
    {128, 8, 2, 512, 512, 2, 512, true, false},  {96, 4, 2, 384, 32, 64, 16384, false, false},
    {256, 8, 2, 1024, 128, 8, 2048, true, true}, {512, 8, 1, 2048, 64, 8, 1024, false, false},
    {768, 12, 1, 3072, 32, 4, 512, false, true}, {1024, 16, 1, 4096, 16, 1, 512, false, true},
};
constexpr Shape kOfGpu[] = {
    {256, 4, 4, 1024, 256, 4, 512, false, true},    {1024, 16, 2, 4096, 1024, 8, 8192, false, true},
    {1024, 16, 2, 4096, 8192, 1, 512, true, true},  {2048, 16, 2, 8192, 2048, 4, 32768, true, true},
    {4096, 32, 1, 14336, 2048, 2, 512, true, true}, {2048, 16, 2, 8192, 128, 2, 512, false, true},
};

deck::Deck DeckOf(const Shape& shape, const deck::Schema& schema) {
  const std::string text = fmt::format(
      "[model]\ndim = {}\nheads = {}\nlayers = {}\nffn = {}\nmax_positions = {}\n{}[data]\n"
      "sequence_length = {}\nstride = {}\nbatch = {}\nmicro_batch = {}\n",
      shape.dim, shape.heads, shape.layers, shape.ffn, shape.length,
      shape.llama ? "norm = rmsnorm\nactivation = swiglu\nposition = rope\n" : "", shape.length,
      shape.length, shape.batch, shape.batch);
  deck::Deck deck = deck::Deck::Parse(schema, text, "calibration", {});
  model::Resolve(deck);
  return deck;
}

train::Plan PlanOf(const Shape& shape, const Subject& subject, device::Precision precision) {
  const deck::Deck deck = DeckOf(shape, subject.schema);
  train::DeckOptions options = train::ReadAll(deck);
  options.machine.precision = precision;
  const device::Arithmetic arithmetic = device::ArithmeticOf(precision, subject.gpu != nullptr);
  train::MachineFacts facts{.dtype = arithmetic.dtype, .stream = subject.stream};
  facts.stream.bf16 = arithmetic.bf16_products;
  facts.stream.fp8 = arithmetic.fp8_products;
  return train::MakePlan({.options = options,
                          .deck = deck,
                          .ranks = 1,
                          .tokens = {.vocabulary = shape.vocabulary,
                                     .train = 100 * shape.batch * (shape.length + 1),
                                     .source = "calibration"},
                          .machine = facts});
}

// A batch of random tokens as entries, one per micro-batch.
std::vector<data::Entry> EntriesOf(const train::TrainingState& state, std::int64_t vocabulary) {
  std::vector<data::Entry> entries = train::BlankEntries(state, {state.Plan().Batch()});
  std::uint32_t number = 0;
  const auto token = [&] {
    const PhiloxCounter words = Philox({number++}, MakeKey(0, Purpose::kInitialise));
    return static_cast<std::int32_t>(words[0] % static_cast<std::uint32_t>(vocabulary));
  };
  for (data::Entry& entry : entries) {
    const auto count = static_cast<std::size_t>(entry.sequences * entry.length);
    entry.inputs.resize(count);
    entry.targets.resize(count);
    std::ranges::generate(entry.inputs, token);
    std::ranges::generate(entry.targets, token);
    entry.ordinals.resize(static_cast<std::size_t>(entry.sequences));
    entry.valid = static_cast<std::int64_t>(count);
  }
  return entries;
}

// Seconds of a step, as train::TrainingStep runs it.
double RunStep(train::TrainingState& state, const std::vector<data::Entry>& entries,
               std::int64_t step, std::int64_t targets) {
  const double start = Seconds();
  state.QueueGradients(state.Net().Tasks().Batches().Take(entries));
  state.QueueSums(step);
  device::Synchronise(state.Stream());
  const double norm = state.GradientNorm(targets);
  state.Net().Tasks().FinishLoss();
  std::array<double, train::TrainingState::kAgreed> agreed{};
  state.Agree(agreed);
  state.Update(step, 1e-4, norm, targets);
  device::Synchronise(state.Stream());
  return Seconds() - start;
}

// Median seconds of a step on this rank. Fast models run more steps.
double Median(const train::Plan& plan, const comm::Communicator& self, Effort effort) {
  constexpr int kMost = 25;
  const int least = effort == Effort::kShort ? 2 : 3;
  const double enough = effort == Effort::kShort ? 0.05 : 0.2;  // seconds
  const comm::ProcessGrid grid(self, plan.grid, plan.sharing);
  train::TrainingState state(grid, plan.training, plan.machine.stream);
  const std::vector<data::Entry> entries = EntriesOf(state, plan.tokens.vocabulary);
  const std::int64_t targets = plan.training.Batch() * plan.training.model.length;
  std::int64_t step = 1;
  RunStep(state, entries, step, targets);  // untimed: warms up code and memory
  std::vector<double> seconds;
  double total = 0;
  while (std::ssize(seconds) < least || (total < enough && std::ssize(seconds) < kMost)) {
    seconds.push_back(RunStep(state, entries, ++step, targets));
    total += seconds.back();
  }
  return MedianOf(seconds);
}

struct MeasuredStep {
  std::string text;  // "fp32, dim 256, 2 layers, 8 x 128 tokens"
  Observation observation;
};

// Appends the measured steps of one precision (median over steps, mean over ranks). Collective.
void MeasureSteps(const Subject& subject, device::Precision precision, Effort effort,
                  std::vector<MeasuredStep>& steps) {
  const comm::Communicator& world = subject.world;
  const comm::Communicator self = world.Split(world.Rank(), 0);
  const std::span<const Shape> shapes =
      subject.gpu == nullptr ? std::span<const Shape>(kOfCpu) : std::span<const Shape>(kOfGpu);
  for (const Shape& shape : shapes) {
    if (effort == Effort::kShort && !shape.shortly) continue;
    train::Plan plan;
    world.Together([&] { plan = PlanOf(shape, subject, precision); });
    MeasuredStep measured;
    measured.text =
        fmt::format("{}, dim {}, {} layer{}, {} x {} tokens, vocabulary {}",
                    device::NameOf(precision), shape.dim, shape.layers,
                    shape.layers == 1 ? "" : "s", shape.batch, shape.length, shape.vocabulary);
    WorkSum log(measured.observation.work);
    train::PlanRank(plan, 0, {plan.training.Batch()}, &log);
    world.Barrier();  // all ranks compute at once: they share memory and power
    const double seconds = Median(plan, self, effort);
    measured.observation.seconds = world.Sum(seconds) / world.Size();
    steps.push_back(std::move(measured));
  }
}

using device::Precision;

// Precisions to measure: the job's own (short), else fp32 and bf16 (GPU) or fp64 (CPU).
std::vector<Precision> PrecisionsOf(const Subject& subject, Effort effort) {
  const Precision own = subject.precision;
  if (effort == Effort::kShort) return {own == Precision::kFp8 ? Precision::kBf16 : own};
  if (subject.gpu != nullptr) return {Precision::kFp32, Precision::kBf16};
  return {Precision::kFp32, Precision::kFp64};
}

Products& ProductsOf(Machine& machine, Dtype type) {
  if (type == Dtype::kBfloat16) return machine.bf16;
  return type == Dtype::kFloat64 ? machine.fp64 : machine.fp32;
}

// Fills in facts of a rank and its node. Collective.
void Describe(const Subject& subject, Machine& machine) {
  const comm::Communicator& world = subject.world;
  machine.ranks_per_node = static_cast<int>(world.Max(std::int64_t{subject.node.Size()}));
  machine.threads = subject.stream.threads;
  machine.gpu = subject.gpu != nullptr;
  if (machine.gpu) {
    const device::GpuContext& card = subject.gpu->Context();
    machine.title = card.name;
    machine.memory_bytes = world.Min(card.memory_bytes);
    machine.capability = card.major * 10 + card.minor;
    machine.multiprocessors = card.multiprocessors;
    machine.background = true;
    machine.assumptions.emplace_back(
        "transfers take nothing from the computation beside them, for want of a measurement");
  } else {
    machine.title = device::CpuName();
    const std::int64_t bytes = comm::AvailableMemory().bytes / subject.node.Size();
    machine.memory_bytes = world.Min(bytes);
    machine.background = false;  // MPI moves bytes while a rank waits for it
  }
  machine.title = world.Broadcast(machine.title);
  machine.name = machine.title;
  machine.source =
      fmt::format("trireme --calibrate, {} of {}, {}", report::Counted(world.Size(), "rank"),
                  report::Counted(machine.threads, "thread"), report::UtcNow());
}

}  // namespace

double Calibration::Worst() const {
  double worst = 0;
  for (const Step& step : steps) {
    worst = std::max(worst, std::abs(step.computed / step.measured - 1));
  }
  return worst;
}

Calibration Calibrate(const Subject& subject, Effort effort) {
  const comm::Communicator& world = subject.world;
  Calibration result;
  Machine& machine = result.machine;
  Describe(subject, machine);
  std::vector<MeasuredStep> steps;
  for (const Precision precision : PrecisionsOf(subject, effort)) {
    const device::Arithmetic arithmetic = device::ArithmeticOf(precision, subject.gpu != nullptr);
    device::Stream stream = subject.stream;
    stream.bf16 = arithmetic.bf16_products;
    world.Barrier();
    const double roof = kernels::MeasureRoof(stream, arithmetic.dtype);
    ProductsOf(machine, arithmetic.dtype).peak = world.Sum(roof) / world.Size();
    MeasureSteps(subject, precision, effort, steps);
  }
  std::vector<Observation> observations;
  for (const MeasuredStep& step : steps) observations.push_back(step.observation);
  Fit(observations, machine);
  MeasureLinks(subject, machine);
  for (const MeasuredStep& step : steps) {
    const Observation& each = step.observation;
    result.steps.push_back({step.text, each.seconds, SecondsOf(each.work, machine)});
  }
  return result;
}

}  // namespace trireme::predict
