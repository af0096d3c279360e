// Times a training step (forward, backward, clip, AdamW) of a preset on random tokens, one process,
// and how fast the machine multiplies matrices meanwhile: our side of step.sh's comparison.
// usage: trireme_step_benchmark PRESET SEQUENCE BATCH [STEPS [fp32|bf16 [MICRO_BATCH]]]
//        trireme_step_benchmark machine             threads: OMP_NUM_THREADS
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "models.hpp"
#include "roofs.hpp"
#include "trireme/base/program.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/report/monitor.hpp"
#include "whole_model.hpp"

namespace {

using namespace trireme;

constexpr int kWarmUp = 2;  // steps that are not timed: first touches, code read from disk

struct Work {
  std::string preset;
  std::int64_t length = 0, batch = 0, micro_batch = 0;  // tokens, sequences, sequences
  int steps = 5;
  bool bf16 = false;
  std::int64_t Tokens() const { return length * batch; }
};

Work ReadWork(int argc, char** argv) {
  const std::string usage =
      "usage: trireme_step_benchmark PRESET SEQUENCE BATCH [STEPS [fp32|bf16 [MICRO_BATCH]]]";
  if (argc < 4) throw AgreedError(ExitCode::kBadInput, usage);
  Work work{argv[1], std::atoll(argv[2]), std::atoll(argv[3])};
  if (argc > 4) work.steps = std::max(1, std::atoi(argv[4]));
  const std::string precision = argc > 5 ? argv[5] : "fp32";
  work.bf16 = precision == "bf16";
  constexpr std::int64_t kMicroBatchTokens = 2048;  // as the driver chooses
  work.micro_batch = argc > 6 ? std::atoll(argv[6])
                              : std::clamp<std::int64_t>(
                                    kMicroBatchTokens / std::max<std::int64_t>(1, work.length), 1,
                                    std::max<std::int64_t>(1, work.batch));
  if ((!work.bf16 && precision != "fp32") || work.length < 1 || work.batch < 1 ||
      work.micro_batch < 1 || work.batch % work.micro_batch != 0) {
    throw AgreedError(ExitCode::kBadInput, usage, "MICRO_BATCH must divide BATCH.");
  }
  if (work.bf16 && device::Bf16Instructions().empty()) {
    throw AgreedError(ExitCode::kBadInput, "this CPU has no bf16 instructions");
  }
  return work;
}

// The peer's models to the last parameter: positions learned, dropout on the embedding and the
// residual branches only.
benchmark::Setup SetupOf(const Work& work) {
  deck::Schema schema;
  model::Declare(schema);
  train::DeclareOptimizerAndSchedule(schema);
  std::vector<std::string> keys = {"model.preset=" + work.preset};
  if (work.preset == "wt2") {
    keys = {"model.dim=256", "model.heads=8", "model.layers=4", "model.ffn=1024",
            "model.dropout=0.1"};
  }
  keys.insert(keys.end(),
              {"model.position=learned", "model.attention_dropout=0", "model.ffn_dropout=0",
               "model.max_positions=" + std::to_string(work.length)});
  // Norms and GELUs again in the backward pass: activations are a quarter of the memory.
  if (work.preset.starts_with("gpt2")) keys.push_back("model.recompute=selective");
  deck::Deck deck = deck::Deck::Parse(schema, "", "benchmark", keys);
  model::Resolve(deck);
  benchmark::Setup setup;
  setup.model.options = model::WithVocabulary(
      model::Read(deck), work.preset.starts_with("gpt2") ? 50257 : 33278, deck);
  setup.model.length = work.length;
  setup.model.micro_batch = work.micro_batch;
  setup.stream.threads = device::ConfigureThreads(0, 1);
  setup.stream.bf16 = work.bf16;
  setup.optimizer = train::ReadOptimizer(deck);
  return setup;
}

// Micro-batches of one step.
std::vector<data::Entry> RandomBatches(const Work& work, std::int64_t vocabulary, int step) {
  std::vector<data::Entry> batches(static_cast<std::size_t>(work.batch / work.micro_batch));
  std::uint32_t number = 0;
  std::uint64_t ordinal = 0;
  for (data::Entry& batch : batches) {
    batch.sequences = work.micro_batch;
    batch.length = work.length;
    batch.valid = work.micro_batch * work.length;
    for (std::int64_t i = 0; i < batch.valid; ++i) {
      const auto words = Philox({number++, 0, 0, 0}, {static_cast<std::uint32_t>(step), 0});
      batch.inputs.push_back(static_cast<std::int32_t>(words[0] % vocabulary));
      batch.targets.push_back(static_cast<std::int32_t>(words[1] % vocabulary));
    }
    for (std::int64_t b = 0; b < batch.sequences; ++b) batch.ordinals.push_back(ordinal++);
  }
  return batches;
}

class Trial {
 public:
  Trial(const Work& work, const benchmark::Setup& setup)
      : work_(work),
        model_(setup.model, setup.stream),
        optimizer_(setup.optimizer, model_.Parameters(), setup.stream) {}

  // Seconds of the next step.
  double Step() {
    const auto batches = RandomBatches(work_, model_.Plan().options.vocabulary, ++step_);
    const auto start = std::chrono::steady_clock::now();
    model_.Parameters().ZeroGradients();
    double sum = 0;
    for (const data::Entry& batch : batches) sum += model_.ForwardBackward(batch, {});
    const auto tokens = static_cast<double>(work_.Tokens());
    optimizer_.Step(step_, 1e-3, std::sqrt(optimizer_.GradientSquares()) / tokens, work_.Tokens(),
                    true);
    loss_ = sum / tokens;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  double Loss() const { return loss_; }  // of the last step, nats a token

 private:
  Work work_;
  test::WholeModel model_;
  train::Optimizer optimizer_;
  int step_ = 0;
  double loss_ = 0;
};

void Run(const Work& work) {
  const benchmark::Setup all = SetupOf(work);
  const model::ModelPlan& setup = all.model;
  const device::Stream& stream = all.stream;
  Trial trial(work, all);
  for (int step = 0; step < kWarmUp; ++step) trial.Step();
  // Before the roofs take memory of their own; later steps take no more.
  const std::int64_t peak = report::PeakResidentBytes();

  const benchmark::ProductRoof roof(
      stream, benchmark::ProductsOf(setup.options, work.micro_batch * work.length,
                                    work.batch / work.micro_batch));
  std::vector<double> times, speeds, products;
  const auto measure_roofs = [&] {
    speeds.push_back(kernels::MeasureRoof(stream, setup.dtype));
    products.push_back(roof.Seconds());
  };
  measure_roofs();
  for (int step = 0; step < work.steps; ++step) {
    times.push_back(trial.Step());
    measure_roofs();
  }
  const double seconds = benchmark::Median(times), speed = benchmark::Median(speeds);
  const auto tokens = static_cast<double>(work.Tokens());
  // Products of attention happen between its other work, panel by panel: counted at the speed
  // of the square product.
  const double attention =
      tokens * benchmark::AttentionFlopsPerToken(setup.options, work.length) / speed;
  const double flops = tokens * model::FlopsPerToken(setup.options, work.length);
  fmt::print(
      "trireme {} {} params {:.2f}M tokens/step {} step_s {:.3f} min {:.3f} tokens/s {:.0f} "
      "peak_MiB {} loss {:.3f} roof_GFLOP/s {:.1f} of_square {:.3f} of_products {:.3f}\n",
      work.preset, work.bf16 ? "bf16" : "fp32",
      static_cast<double>(model::ParameterCount(setup.options)) * 1e-6, work.Tokens(), seconds,
      *std::min_element(times.begin(), times.end()), tokens / seconds, peak >> 20, trial.Loss(),
      speed * 1e-9, flops / seconds / speed, (benchmark::Median(products) + attention) / seconds);
}

void PrintMachine() {
  const std::string bf16 = device::Bf16Instructions();
  fmt::print("cpu       {} ({}, bf16: {}), {} threads\n", device::CpuName(),
             device::InstructionSet(), bf16.empty() ? "none" : bf16,
             device::ConfigureThreads(0, 1));
  fmt::print("trireme   {} ({}), {}, {}\n", Version(), Commit(), Compiler(),
             kernels::MatrixLibrary());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 2 && std::string(argv[1]) == "machine") {
      PrintMachine();
    } else {
      Run(ReadWork(argc, argv));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
