// Times training steps of a model on GPUs, on made-up tokens, as the program trains (rehearsal,
// graphs, batches loaded ahead), and how fast the card multiplies matrices: our side of gpu.sh's
// comparison.
// usage: trireme_gpu_benchmark MODEL [fp32|bf16|fp8 [STEPS]] [section.key=value ...]
//   MODEL: tiny (for the emulator), jsc, gpt2_124m, gpt2_1558m, llama_8b16 (an 8B Llama's width,
//   16 layers). Any key of a deck may follow: data.batch, data.micro_batch, run.graphs=no,
//   model.recompute=full, grid.tensor ... Ranks share the work as grid says, one GPU each; the
//   model's batch is a rank's. STEPS = 0: only plans the memory and takes it.
//        trireme_gpu_benchmark machine
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "gpu_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_step.hpp"

namespace {

using namespace trireme;

constexpr int kWarmUp = 3;         // steps: the rehearsal, the recording, the first replay
constexpr std::int64_t kLap = 16;  // steps of an epoch; none is short

struct Preset {
  std::int64_t vocabulary = 0, length = 0;
  std::int64_t batch = 0, micro_batch = 0;  // sequences of a rank; micro_batch 0: what suits
  const char* keys = "";                    // of [model]
};
// jsc and gpt2_124m are the peer's models (test/benchmark/step.cpp): positions learned, dropout on
// the embedding and the residual branches only; gpt2_124m_dropout has the preset's, on the weights
// of attention too. The large ones train without dropout.
const std::map<std::string, Preset>& Presets() {
  static const std::map<std::string, Preset> presets = {
      {"tiny", {97, 16, 8, 4, "dim = 32\nheads = 2\nlayers = 2\nffn = 64\ndropout = 0.1\n"}},
      {"jsc",
       {33278, 32, 512, 0,
        "preset = jsc\nposition = learned\nattention_dropout = 0\nffn_dropout = 0\n"}},
      {"gpt2_124m", {50257, 1024, 16, 0, "preset = gpt2_124m\nattention_dropout = 0\n"}},
      {"gpt2_124m_dropout", {50257, 1024, 16, 0, "preset = gpt2_124m\n"}},
      {"gpt2_1558m",
       {50257, 1024, 32, 8, "preset = gpt2_1558m\ndropout = 0\nattention_dropout = 0\n"}},
      {"llama_8b16",
       {128256, 4096, 8, 2,
        "dim = 4096\nheads = 32\nkv_heads = 8\nlayers = 16\nffn = 14336\n"
        "norm = rmsnorm\nactivation = swiglu\nposition = rope\nrope_theta = 500000\n"
        "bias = no\ntie_embeddings = no\ninit = gpt2\n"}}};
  return presets;
}

struct Arguments {
  std::string model, precision = "bf16";
  int steps = 10;
  std::vector<std::string> overrides;
};
Arguments ReadArguments(int argc, char** argv) {
  const Error usage(ExitCode::kBadInput,
                    "usage: trireme_gpu_benchmark MODEL [fp32|bf16|fp8 [STEPS]] "
                    "[section.key=value ...]",
                    "MODEL: tiny, jsc, gpt2_124m, gpt2_124m_dropout, gpt2_1558m, llama_8b16.");
  Arguments arguments;
  std::vector<std::string> plain;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    (word.find('=') == std::string::npos ? plain : arguments.overrides).push_back(word);
  }
  if (plain.empty() || plain.size() > 3) throw usage;
  arguments.model = plain[0];
  if (plain.size() > 1) arguments.precision = plain[1];
  if (plain.size() > 2) {
    const std::string& text = plain[2];
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), arguments.steps);
    if (error != std::errc() || end != text.data() + text.size() || arguments.steps < 0) {
      throw usage;
    }
  }
  if (arguments.model != "machine" && !Presets().contains(arguments.model)) throw usage;
  return arguments;
}

std::string DeckOf(const Arguments& arguments, int ranks) {
  const Preset& preset = Presets().at(arguments.model);
  return fmt::format(
      "precision = {}\n[data]\nsequence_length = {}\nbatch = {}\nmicro_batch = {}\n"
      "[optimizer]\nlearning_rate = 3e-4\nweight_decay = 0.1\nclip_norm = 1\n"
      "[schedule]\nsteps = 100000\nwarmup_steps = 0\ndecay = constant\n"
      "[model]\nmax_positions = {}\n{}",
      arguments.precision, preset.length, preset.batch * ranks, preset.micro_batch, preset.length,
      preset.keys);
}

// Random tokens, every third one of a few: something to learn at once.
data::TokenData MadeUpTokens(std::int64_t vocabulary, std::int64_t count) {
  constexpr std::int64_t kEvery = 3, kCommon = 5;
  data::TokenData data;
  for (const data::Split split : data::kSplits) {
    std::vector<std::int32_t>& tokens = data.tokens.at(static_cast<std::size_t>(split));
    const std::int64_t size = split == data::Split::kTrain ? count : 2;
    for (std::int64_t i = 0; i < size; ++i) {
      const auto words = Philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {1, 0});
      const std::int64_t range = i % kEvery == 0 ? std::min(kCommon, vocabulary) : vocabulary;
      tokens.push_back(static_cast<std::int32_t>(words[0] % range));
    }
  }
  for (std::int64_t id = 0; id < vocabulary; ++id) {
    data.vocabulary.words.push_back(std::to_string(id));
  }
  data.tokenizer = "word";
  return data;
}

// Launches that a step's gradients and their sums consist of, without those of the norm and of fp8
// scales: recorded once more, and not run. Nothing where the schedule cannot be recorded. Leaves
// the training in the middle of a step.
std::optional<std::int64_t> CountNodes(train::TrainingState& state, const data::TokenFile& tokens,
                                       std::int64_t step) {
  model::ParallelModel& net = state.Net();
  const comm::ProcessGrid& grid = state.Grid();
  if (grid.Shape().pipeline > 1 || net.Units().ValuesSharded() || net.Units().GradientsSharded() ||
      !grid.Recordable()) {
    return {};
  }
  train::BatchLoader loader(state, tokens);
  train::LoadedBatch batch;
  loader.Load(step, batch);
  model::StagedBatches::Taken taken = net.Tasks().Batches().Take(batch.Entries());
  device::Synchronise(net.Stream());
  device::Graph graph;
  graph.Begin(net.Stream());
  state.QueueGradients(std::move(taken));
  net.Units().FinishGradients();
  net.Buckets().Wait();
  net.SumSharedGradients();
  graph.End(net.Stream());
  return graph.Nodes();
}

struct Measured {
  std::vector<double> seconds;  // of each step behind the warm-up
  double roof = 0;              // FLOP/s
  double first_loss = 0, last_loss = 0;
  std::int64_t peak_bytes = 0, card_bytes = 0;  // allocated by the program; all that is taken
};

Measured Measure(const app::Device& device, train::TrainingStep& training, int steps) {
  Measured measured;
  const double roof = kernels::MeasureRoof(device.stream, device.dtype);
  device::ResetPeakAllocatedBytes();
  for (int step = 0; step < kWarmUp + steps; ++step) {
    const double start = Seconds();
    const train::StepResult result = training.Run(step);
    if (step >= kWarmUp) measured.seconds.push_back(Seconds() - start);
    (step == 0 ? measured.first_loss : measured.last_loss) = result.loss;
  }
  device::Synchronise(device.stream);
  measured.peak_bytes = device::PeakAllocatedBytes();
  measured.card_bytes = device.stream.gpu->memory_bytes - device::FreeBytes(device.stream);
  // Cold and warm: what the step is held against is the better one.
  measured.roof = std::max(roof, kernels::MeasureRoof(device.stream, device.dtype));
  return measured;
}

void Print(const Arguments& arguments, const train::TrainingPlan& plan, int ranks,
           const Measured& measured, const std::string& nodes) {
  const model::Options& options = plan.model.options;
  const std::int64_t tokens = plan.Batch() * plan.model.length;
  const double seconds = benchmark::MedianOf(measured.seconds);
  const double flops = static_cast<double>(tokens) *
                       model::FlopsPerToken(options, plan.model.length) / seconds / ranks;
  fmt::print(
      "trireme {} {} ranks {} params {:.2f}M tokens/step {} micro_batch {} recompute {} "
      "step_s {:.5f} min {:.5f} tokens/s {:.0f} TFLOP/s {:.2f} roof_TFLOP/s {:.2f} of_roof {:.4f} "
      "peak_MiB {} card_MiB {} graphs {} nodes {} loss {:.3f}->{:.3f}\n",
      arguments.model, arguments.precision, ranks,
      static_cast<double>(model::ParameterCount(options)) * 1e-6, tokens, plan.model.micro_batch,
      model::NameOf(options.recompute), seconds,
      *std::min_element(measured.seconds.begin(), measured.seconds.end()),
      static_cast<double>(tokens) / seconds, flops * 1e-12, measured.roof * 1e-12,
      flops / measured.roof, measured.peak_bytes >> 20, measured.card_bytes >> 20,
      plan.options.graphs ? "auto" : "no", nodes, measured.first_loss, measured.last_loss);
}

void PrintPlan(const Arguments& arguments, const device::MemoryTerms& memory) {
  std::string text;
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    const std::int64_t bytes = memory.*term.bytes;
    if (bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", term.name, bytes >> 20);
  }
  fmt::print("trireme {} {} fits: {} = {} MiB per rank\n", arguments.model, arguments.precision,
             text, memory.Total() >> 20);
}

void Run(const comm::Runtime& runtime, const Arguments& arguments) {
  const comm::Communicator& world = runtime.World();
  const Preset& preset = Presets().at(arguments.model);
  const deck::Schema schema = tasks::DeclareAll();
  const app::Job job =
      benchmark::MakeGpuJob(runtime, schema, DeckOf(arguments, world.Size()), arguments.overrides);
  const data::Options& windows = job.request.data;
  const data::TokenFile tokens(
      world, MadeUpTokens(preset.vocabulary, kLap * windows.batch * windows.sequence_length + 1));
  const train::TokenFacts facts{.vocabulary = tokens.VocabularySize(),
                                .train = tokens.Size(data::Split::kTrain),
                                .bytes = tokens.MemoryBytes(),
                                .source = "made-up tokens"};
  train::Plan plan;
  world.Together([&] {
    plan = train::MakePlan(app::RequestOf(job.request, world, job.device, job.start, facts));
  });
  comm::ProcessGrid grid(world, plan.grid, plan.sharing);
  const device::MemoryTerms planned = train::PlanMemory(plan, world.Rank());
  app::CheckMemory(job.request, job.ranks, job.device, planned, grid);
  world.Together([&] { train::CheckTransfers(plan, world.Rank()); });
  app::UseGpu(job.request, job.device, planned, grid);
  train::TrainingState state(grid, plan.training, job.device.stream);
  if (arguments.steps == 0) {
    if (world.IsRoot()) PrintPlan(arguments, state.Memory());
    return;
  }
  train::TrainingStep training(state, tokens);
  const Measured measured = Measure(job.device, training, arguments.steps);
  const auto nodes = CountNodes(state, tokens, kWarmUp + arguments.steps);
  if (world.IsRoot()) {
    Print(arguments, plan.training, world.Size(), measured, nodes ? std::to_string(*nodes) : "-");
  }
  if (measured.last_loss < measured.first_loss) return;  // nor where it is not a number
  throw AgreedError(ExitCode::kFailed,
                    fmt::format("the loss went from {} to {}: it should have fallen",
                                measured.first_loss, measured.last_loss));
}

}  // namespace

int main(int argc, char** argv) {
  return benchmark::OnGpus(&argc, &argv, [&](const comm::Runtime& runtime) {
    Arguments arguments;
    runtime.World().Together([&] { arguments = ReadArguments(argc, argv); });
    if (arguments.model != "machine") return Run(runtime, arguments);
    const deck::Schema schema = tasks::DeclareAll();
    const app::Job job = benchmark::MakeGpuJob(runtime, schema, "", arguments.overrides);
    if (runtime.World().IsRoot())
      fmt::print("{}", benchmark::DescribeGpu(job.device.gpu->Context()));
  });
}
