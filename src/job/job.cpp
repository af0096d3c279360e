// Job: from the command line to a parsed deck, an opened device and the request for a plan.
#include "trireme/job/job.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "trireme/base/clock.hpp"
#include "trireme/machine/gpu_choice.hpp"
#include "trireme/machine/node_memory.hpp"
#include "trireme/machine/precision.hpp"
#include "trireme/model/parameter_place.hpp"

namespace trireme::job {

const char* Job::Precision() const {
  return stream.fp8 ? "fp8" : stream.bf16 ? "bf16" : NameOf(dtype);
}

std::string ReadDeckFile(const std::string& path) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  std::ifstream file(path);
  std::string text;
  std::array<char, 4096> piece{};
  while (regular && (file.read(piece.data(), piece.size()), file.gcount() > 0)) {
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!regular || !file.is_open() || file.bad()) {
    const char* reason = error             ? ""
                         : !regular        ? ": is not a file"
                         : !file.is_open() ? ": no permission"
                                           : ": an error of the disk";
    throw InputError(fmt::format("{}: the deck cannot be read{}{}", path,
                                 error ? ": " + error.message() : "", reason),
                     "Check the path behind -i.");
  }
  return text;
}

input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line,
                      const std::string& text) {
  input::Deck deck = input::Deck::Parse(schema, text, line.deck, line.overrides);
  Resolve(deck);
  data::Resolve(deck);
  model::Resolve(deck);
  return deck;
}

namespace {

// Opens the GPU if the ranks compute on theirs, and sets the arithmetic.
void OpenDevice(const machine::GpuChoice& choice, Job& job) {
  const machine::Arithmetic arithmetic =
      machine::ArithmeticOf(job.options.machine.precision, choice.use);
  job.World().Together([&] {
    if (choice.use) {
      job.gpu = std::make_unique<device::Gpu>(choice.device);
      job.gpu_shared = choice.shared;
      job.stream.gpu = &job.gpu->Context();
    }
    job.dtype = arithmetic.dtype;
    job.stream.bf16 = arithmetic.bf16_products;
    job.stream.fp8 = arithmetic.fp8_products;
    if (job.options.job.task == Task::kTokenize) return;
    machine::CheckPrecision(job.options.machine.precision, job.stream, job.deck);
    if (!choice.use) return;
    const std::int64_t sites = model::kSitesABlock * job.options.model.layers;
    job.libraries = kernels::MakeLibraries(job.stream, static_cast<int>(sites));
    job.stream.libraries = job.libraries.get();
  });
}

}  // namespace

Job MakeJob(const comm::Runtime& runtime, const CommandLine& line, const input::Schema& schema,
            machine::StopSignals& signals) {
  const comm::Communicator& world = runtime.World();
  Job job;
  job.start_seconds = Seconds();
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
  const machine::GpuChoice choice = machine::ChooseGpu(runtime, job.options.machine, job.deck);
  job.placement = machine::PlaceThreads(runtime, job.options.machine, choice.use);
  job.stream.threads = job.placement.threads;
  OpenDevice(choice, job);
  return job;
}

plan::TokenFacts FactsOf(const data::Options& options, int shared_by) {
  const data::TokenCounts counts = data::CountTokens(options.file);
  std::int64_t bytes = counts.bytes;
  if (options.staging == data::Staging::kSharedMemory) {
    bytes = shared_by == 0 ? 0 : bytes / shared_by;
  }
  return {.vocabulary = counts.vocabulary,
          .train = counts.tokens.front(),
          .bytes = bytes,
          .source = std::filesystem::path(options.file).filename().string()};
}

plan::TokenFacts InspectTokens(const Job& job) {
  const comm::Communicator& world = job.World();
  plan::TokenFacts facts;
  world.Together([&] {
    // A wrong number of ranks is said before a missing file.
    plan::PlanGrid(job.options, job.deck, world.Size());
    if (world.IsRoot()) facts = FactsOf(job.options.data, job.runtime->Node().Size());
  });
  // Sums of one rank's numbers and of zeros.
  for (std::int64_t* number : {&facts.vocabulary, &facts.train, &facts.bytes}) {
    *number = world.Sum(*number);
  }
  facts.source = world.Broadcast(facts.source);
  return facts;
}

plan::MachineFacts FactsOf(const Job& job) { return {.dtype = job.dtype, .stream = job.stream}; }

plan::Request RequestOf(const Job& job, const plan::TokenFacts& tokens) {
  return {.options = job.options,
          .deck = job.deck,
          .ranks = job.World().Size(),
          .tokens = tokens,
          .machine = FactsOf(job)};
}

void CheckMemory(const Job& job, const machine::MemoryTerms& planned,
                 const comm::ProcessGrid& grid) {
  const machine::NodeDemand demand = machine::DemandOf(job.runtime->Node(), planned, job.stream);
  job.World().Together(
      [&] { machine::CheckNodeMemory(demand, grid, job.options.parallel.canonical.On()); });
}

void UseGpu(const Job& job, comm::ProcessGrid& grid) {
  if (!job.stream.OnGpu()) return;
  grid.UseGpu(job.stream, job.gpu_shared, job.options.parallel.chunks);
}

data::TokenFile OpenTokens(const Job& job) {
  return data::TokenFile(job.World(), job.runtime->Node(), job.options.data.file,
                         job.options.data.staging, [&job] { StopIfAsked(job); });
}

void StopIfAsked(const Job& job) {
  if (job.World().Max(std::int64_t{job.signals->Received()}) == 0) return;
  throw AgreedError(
      ExitCode::kStopped,
      "stopped by a signal during the set-up: nothing was computed yet; run it again");
}

ExitCode SayValid(const Job& job) {
  if (job.World().IsRoot()) fmt::print("valid: everything was constructed; nothing was computed\n");
  return ExitCode::kDone;
}

}  // namespace trireme::job
