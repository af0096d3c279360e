#include "trireme/job/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trireme/machine/gpu_choice.hpp"
#include "trireme/model/check_layout.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::job {

namespace {
// An automatic micro-batch: enough rows for the products to run at full speed, few enough for the
// activations of a layer to stay small.
constexpr std::int64_t kMicroBatchTokens = 2048, kGpuMicroBatchTokens = 16384;

// Emulated bf16 would be slower than fp32: nobody who asks for it wants that.
void CheckPrecision(const Job& job) {
  constexpr int kFirstWithFp8 = 9;  // compute capability: Hopper
  if (job.deck.Text("run.precision") == "fp8" && !job.stream.OnGpu()) {
    throw job.deck.Complain("run.precision", "fp8 products are computed by GPUs only",
                            "Use run.precision = bf16 or fp32 on the CPU.");
  }
  if (job.stream.fp8 && job.gpu->Context().major < kFirstWithFp8) {
    throw job.deck.Complain(
        "run.precision",
        fmt::format("{} (compute capability {}.{}) has no fp8 products", job.gpu->Context().name,
                    job.gpu->Context().major, job.gpu->Context().minor),
        "fp8 takes Hopper (H100, H200, GH200) or newer: use run.precision = bf16 here.");
  }
  if (!job.stream.bf16 || !device::Bf16Instructions().empty()) return;
  throw job.deck.Complain(
      "run.precision",
      fmt::format(
          "this processor ({}, {}) does not multiply bfloat16: that takes AVX512-BF16 or AMX",
          device::CpuName(), device::InstructionSet()),
      "Use run.precision = fp32 here.");
}

}  // namespace

void DeclareJob(input::Schema& schema) {
  using input::AtLeast, input::Between;
  schema.Section("job", "What to do, and where its results go.")
      .Choice("job.task", "train", {"train", "evaluate", "generate", "tokenize", "verify"},
              "train: learn; evaluate: validation and test loss of -r; generate: continue a prompt "
              "with -r; tokenize: write data.file from text; verify: compare a small run of this "
              "deck on these ranks with one rank's.")
      .Text("job.name", "run", "Name of the run.")
      .Text("job.output", "",
            "Run folder; one that holds a run already is refused without -r. Empty: runs/<name>.");
  schema.Section("run", "How to compute.")
      .Choice("run.device", "auto", {"auto", "cpu", "cuda"},
              "auto: GPUs where the program was built for them and every rank sees one, else the "
              "CPU. cuda: one GPU a rank, or an error that says what is missing.")
      .Switch("run.share_device", false,
              "Several ranks may share a GPU; transfers between ranks then pass through the host. "
              "For trying out layouts, not for speed.")
      .Choice("run.graphs", "auto", {"auto", "no"},
              "auto: on a GPU, a step's gradients are recorded as a CUDA graph once and launched "
              "as one from then on, where the schedule is static: one pipeline stage, parameters "
              "and gradients not sharded, no shared GPU. Steps with other sizes (the last of an "
              "epoch) run as before. no: every kernel is launched by itself.")
      .Text("run.products", "auto",
            "On a GPU: the file that keeps which algorithm computes each matrix product. They are "
            "timed once for a card, library version and size; another choice would round "
            "otherwise. auto: below XDG_CACHE_HOME, else ~/.cache. Empty: nowhere; each new run "
            "times them, and may differ from the last in its last bits.")
      .Choice(
          "run.precision", "fp32", {"fp32", "bf16", "fp8", "fp64"},
          "bf16: matrix products take bfloat16 operands and add up in fp32. On the CPU all that is "
          "stored stays fp32, and it takes a processor that multiplies bfloat16 (AVX512-BF16 or "
          "AMX); on a GPU activations and the weights that products read are stored in bfloat16, "
          "gradients, moments and the weights that are updated in fp32. Checkpoints are fp32. "
          "fp8: as bf16, with the linear layers' products in fp8 (e4m3 forward, e5m2 gradients), "
          "scaled tensor by tensor; GPUs from Hopper on. fp64 is for verification.")
      .Integer("run.seed", 1, Between(0, 4294967295.0), "",
               "Of initial weights, sample order, dropout.")
      .Integer(
          "run.threads", 0, Between(0, 4096), "threads",
          "OpenMP threads a rank. 0: OMP_NUM_THREADS, else its share of the cores it is bound to.")
      .Choice("run.pin", "auto", {"auto", "yes", "no"},
              "Each OpenMP thread stays on a core of its own, those of a rank side by side. auto: "
              "where the job's threads fill the cores that it may use on a node, and computes on "
              "them; yes: wherever there are enough cores. OMP_PROC_BIND, OMP_PLACES and "
              "GOMP_CPU_AFFINITY win.");
  schema.Section("generate", "Continuing a prompt (job.task = generate).")
      .Text("generate.prompt", "", "Text to continue. Empty: start behind an <eos>.")
      .Integer("generate.tokens", 100, AtLeast(1), "tokens", "How many to add.")
      .Real("generate.temperature", 0.8, AtLeast(0), "", "0: greedy, always the likeliest.")
      .Integer("generate.top_k", 0, AtLeast(0), "tokens", "Draw from the k likeliest. 0: from all.")
      .Real("generate.top_p", 1, {0, 1, true, false}, "",
            "Draw from the fewest tokens that hold this much probability.")
      .Integer("generate.seed", 1, Between(0, 4294967295.0), "", "Of the draws.");
}

std::string ReadDeckFile(const std::string& path) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  std::ifstream file(path);
  std::stringstream text;
  if (regular && file) text << file.rdbuf();
  if (!regular || !file || file.bad()) {
    const char* reason = error ? "" : regular ? ": no permission" : ": is not a file";
    throw InputError(fmt::format("{}: the deck cannot be read{}{}", path,
                                 error ? ": " + error.message() : "", reason),
                     "Check the path behind -i.");
  }
  return text.str();
}

input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line,
                      const std::string& text) {
  input::Deck deck = input::Deck::Parse(schema, text, line.deck, line.overrides);
  if (deck.Text("job.output").empty()) {
    deck.Supply("job.output", "runs/" + deck.Text("job.name"), "job.name");
  }
  if (deck.Integer("data.stride") == 0) {
    deck.Supply("data.stride", std::to_string(deck.Integer("data.sequence_length")),
                "data.sequence_length");
  }
  return deck;
}

Job MakeJob(const comm::Runtime& runtime, const CommandLine& line, const input::Schema& schema,
            machine::StopSignals& signals) {
  const comm::Communicator& world = runtime.World();
  Job job;
  job.start_seconds = MPI_Wtime();
  job.runtime = &runtime;
  job.line = &line;
  job.signals = &signals;
  std::string text;
  world.Together([&] {
    if (world.IsRoot()) text = ReadDeckFile(line.deck);
  });
  text = world.Broadcast(text);
  world.Together([&] { job.deck = ParseDeck(schema, line, text); });
  const machine::GpuChoice choice = machine::ChooseGpu(runtime, job.deck);
  job.placement = machine::PlaceThreads(runtime, job.deck, choice.use);
  job.stream.threads = job.placement.threads;
  const std::string& precision = job.deck.Text("run.precision");
  job.dtype = precision == "fp64" ? Dtype::kFloat64 : Dtype::kFloat32;
  if (choice.use) {
    world.Together([&] { job.gpu = std::make_unique<device::Gpu>(choice.device); });
    job.gpu_shared = choice.shared;
    job.stream.gpu = &job.gpu->Context();
    job.stream.fp8 = precision == "fp8";
    if (precision == "bf16" || precision == "fp8") job.dtype = Dtype::kBfloat16;
  } else {
    job.stream.bf16 = precision == "bf16";
  }
  job.seed = static_cast<std::uint32_t>(job.deck.Integer("run.seed"));
  return job;
}

void UseGpu(const Job& job, comm::ProcessGrid& grid) {
  if (!job.stream.OnGpu()) return;
  const auto chunks = static_cast<int>(job.deck.Integer("pipeline.chunks"));
  grid.UseGpu(job.stream, job.gpu_shared, chunks);
}

data::TokenFile OpenTokens(const Job& job) {
  const bool shared = job.deck.Text("data.staging") == "shared_memory";
  return data::TokenFile(job.World(), job.runtime->Node(), job.deck.Text("data.file"),
                         shared ? data::Staging::kSharedMemory : data::Staging::kNone);
}

comm::ProcessGrid MakeGrid(Job& job) {
  constexpr std::int64_t kUnknownVocabulary = 1 << 20;  // the token file was not opened yet
  model::Options options;
  job.World().Together([&] { options = model::ReadModel(job.deck, kUnknownVocabulary); });
  const auto chunks = static_cast<int>(job.deck.Integer("pipeline.chunks"));
  return comm::ProcessGrid(job.World(), job.deck,
                           [options, chunks](std::int64_t tensor, std::int64_t pipeline) {
                             return model::LayoutFits(options, chunks, tensor, pipeline);
                           });
}

DataShape ReadDataShape(const Job& job) {
  const input::Deck& deck = job.deck;
  DataShape shape;
  shape.length = deck.Integer("data.sequence_length");
  shape.stride = deck.Integer("data.stride");
  if (shape.stride == 0) shape.stride = shape.length;
  shape.batch = deck.Integer("data.batch");
  shape.micro_batch = deck.Integer("data.micro_batch");
  if (shape.micro_batch == 0) {
    shape.micro_batch = std::max<std::int64_t>(
        1, (job.stream.OnGpu() ? kGpuMicroBatchTokens : kMicroBatchTokens) / shape.length);
  }
  return shape;
}

model::ModelPlan ReadModelPlan(Job& job, std::int64_t vocabulary, const DataShape& shape) {
  model::ModelPlan plan;
  plan.options = model::ReadModel(job.deck, vocabulary);
  if (plan.options.position == model::Position::kLearned &&
      shape.length > plan.options.max_positions) {
    throw job.deck.Complain(
        "data.sequence_length",
        fmt::format("longer than model.max_positions = {}", plan.options.max_positions),
        "Learned positions end there: raise model.max_positions or shorten the sequence.");
  }
  CheckPrecision(job);
  if (job.stream.OnGpu() && job.deck.Text("run.canonical") != "none") {
    throw job.deck.Complain("run.canonical", "is arithmetic of the CPU: GPUs have none",
                            "Use run.device = cpu, or run.canonical = none.");
  }
  if (job.stream.OnGpu() && job.products == nullptr) {
    const std::int64_t sites = model::kSitesABlock * plan.options.layers;
    job.products = kernels::MakeProducts(job.stream, static_cast<int>(sites));
    job.stream.products = job.products.get();
  }
  plan.dtype = job.dtype;
  plan.seed = job.seed;
  plan.length = shape.length;
  plan.micro_batch = shape.micro_batch;
  return plan;
}

ExitCode SayValid(const Job& job) {
  if (job.World().IsRoot()) fmt::print("valid: everything was constructed; nothing was computed\n");
  return ExitCode::kDone;
}

std::string Describe(const model::Options& options) {
  const auto plural = [](std::int64_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  std::string heads = plural(options.heads, "head");
  if (options.kv_heads != options.heads) heads += fmt::format(" ({} kv)", options.kv_heads);
  return fmt::format("{}{}, dim {}, {}, vocabulary {}; {} parameters",
                     options.preset == "none" ? "" : options.preset + ": ",
                     plural(options.layers, "layer"), options.dim, heads,
                     monitor::WithThousands(options.vocabulary),
                     monitor::WithSuffix(static_cast<double>(model::ParameterCount(options))));
}

}  // namespace trireme::job
