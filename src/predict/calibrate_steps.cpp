// MeasureSteps: models whose steps consist of products, attention, passes over memory and small
// kernels in different shares, so that a fit can tell these apart.
#include "steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "trireme/base/clock.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/precision.hpp"
#include "trireme/model/options.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/blank_batch.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::predict {

namespace {

struct Shape {
  int dim, heads, layers, ffn;
  std::int64_t length, batch, vocabulary;
  bool llama;    // RMSNorm, SwiGLU, rotary positions; else LayerNorm, GELU, learned ones
  bool shortly;  // measured in a short calibration, too
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

// A batch of random tokens, in entries of one micro-batch each.
std::vector<data::Entry> EntriesOf(const train::TrainingState& state, std::int64_t vocabulary) {
  std::vector<data::Entry> entries = train::BlankEntries(state, {state.Plan().batch});
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
  state.QueueGradients(state.Net().Take(state.Net().Stage(entries)));
  state.QueueSums();
  device::Synchronise(state.Stream());
  const double norm = state.GradientNorm(targets);
  state.Net().FinishLoss();
  std::array<double, train::TrainingState::kAgreed> agreed{};
  state.Agree(agreed);
  state.Update(step, 1e-4, norm, targets);
  device::Synchronise(state.Stream());
  return Seconds() - start;
}

// This rank's median. Models of microseconds run more often.
double Median(const train::Plan& plan, const comm::Communicator& self, Effort effort) {
  constexpr int kMost = 25;
  const int least = effort == Effort::kShort ? 2 : 3;
  const double enough = effort == Effort::kShort ? 0.05 : 0.2;  // seconds
  const comm::ProcessGrid grid(self, plan.grid, plan.sharing);
  train::TrainingState state(grid, plan.training, plan.machine.stream);
  const std::vector<data::Entry> entries = EntriesOf(state, plan.tokens.vocabulary);
  const std::int64_t targets = plan.training.batch * plan.training.model.length;
  std::int64_t step = 1;
  RunStep(state, entries, step, targets);  // finds its code and its memory
  std::vector<double> seconds;
  double total = 0;
  while (std::ssize(seconds) < least || (total < enough && std::ssize(seconds) < kMost)) {
    seconds.push_back(RunStep(state, entries, ++step, targets));
    total += seconds.back();
  }
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

}  // namespace

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
    train::PlanRank(plan, 0, {plan.training.batch}, &log);
    world.Barrier();  // ranks of a node share its memory and its power
    const double seconds = Median(plan, self, effort);
    measured.observation.seconds = world.Sum(seconds) / world.Size();
    steps.push_back(std::move(measured));
  }
}

}  // namespace trireme::predict
