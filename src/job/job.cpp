#include "trireme/job/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trireme/machine/gpu_choice.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::job {

namespace {
// An automatic micro-batch: enough rows for the products to run at full speed, few enough for the
// activations of a layer to stay small.
constexpr std::int64_t kMicroBatchTokens = 2048, kGpuMicroBatchTokens = 16384;

// Emulated bf16 would be slower than fp32: nobody who asks for it wants that.
void CheckPrecision(const Job& job) {
  constexpr int kFirstWithFp8 = 9;  // compute capability: Hopper
  if (job.options.machine.precision == machine::Precision::kFp8 && !job.stream.OnGpu()) {
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
  Resolve(deck);
  data::Resolve(deck);
  model::Resolve(deck);
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
  world.Together([&] {
    job.deck = ParseDeck(schema, line, text);
    job.options = ReadAll(job.deck);
  });
  const machine::Options& options = job.options.machine;
  const machine::GpuChoice choice = machine::ChooseGpu(runtime, options, job.deck);
  job.placement = machine::PlaceThreads(runtime, options, choice.use);
  job.stream.threads = job.placement.threads;
  using machine::Precision;
  const Precision precision = options.precision;
  job.dtype = precision == Precision::kFp64 ? Dtype::kFloat64 : Dtype::kFloat32;
  if (choice.use) {
    world.Together([&] { job.gpu = std::make_unique<device::Gpu>(choice.device); });
    job.gpu_shared = choice.shared;
    job.stream.gpu = &job.gpu->Context();
    job.stream.fp8 = precision == Precision::kFp8;
    if (precision == Precision::kBf16 || precision == Precision::kFp8) job.dtype = Dtype::kBfloat16;
  } else {
    job.stream.bf16 = precision == Precision::kBf16;
  }
  job.seed = options.seed;
  return job;
}

void UseGpu(const Job& job, comm::ProcessGrid& grid) {
  if (!job.stream.OnGpu()) return;
  grid.UseGpu(job.stream, job.gpu_shared, job.options.parallel.chunks);
}

data::TokenFile OpenTokens(const Job& job) {
  return data::TokenFile(job.World(), job.runtime->Node(), job.options.data.file,
                         job.options.data.staging);
}

comm::ProcessGrid MakeGrid(const Job& job) {
  constexpr std::int64_t kUnknownVocabulary = 1 << 20;  // the token file was not opened yet
  model::Options options = job.options.model;
  options.vocabulary = kUnknownVocabulary;
  return comm::ProcessGrid(
      job.World(), job.options.comm, job.deck,
      [options, chunks = job.options.parallel.chunks](std::int64_t tensor, std::int64_t pipeline) {
        return model::LayoutFits(options, chunks, tensor, pipeline);
      });
}

DataShape ReadDataShape(const Job& job) {
  const data::Options& options = job.options.data;
  DataShape shape{.length = options.sequence_length,
                  .stride = options.stride,
                  .batch = options.batch,
                  .micro_batch = options.micro_batch};
  if (shape.micro_batch == 0) {
    shape.micro_batch = std::max<std::int64_t>(
        1, (job.stream.OnGpu() ? kGpuMicroBatchTokens : kMicroBatchTokens) / shape.length);
  }
  return shape;
}

model::ModelSetup ReadModelSetup(Job& job, std::int64_t vocabulary, const DataShape& shape) {
  model::ModelSetup setup;
  setup.options = model::WithVocabulary(job.options.model, vocabulary, job.deck);
  if (setup.options.position == model::Position::kLearned &&
      shape.length > setup.options.max_positions) {
    throw job.deck.Complain(
        "data.sequence_length",
        fmt::format("longer than model.max_positions = {}", setup.options.max_positions),
        "Learned positions end there: raise model.max_positions or shorten the sequence.");
  }
  CheckPrecision(job);
  if (job.stream.OnGpu() && job.options.parallel.canonical.On()) {
    throw job.deck.Complain("run.canonical", "is arithmetic of the CPU: GPUs have none",
                            "Use run.device = cpu, or run.canonical = none.");
  }
  if (job.stream.OnGpu() && job.products == nullptr) {
    const std::int64_t sites = model::kSitesABlock * setup.options.layers;
    job.products = kernels::MakeProducts(job.stream, static_cast<int>(sites));
    job.stream.products = job.products.get();
  }
  setup.dtype = job.dtype;
  setup.stream = job.stream;
  setup.seed = job.seed;
  setup.length = shape.length;
  setup.micro_batch = shape.micro_batch;
  return setup;
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
