// job.task = import: a model folder of Hugging Face becomes a run with a checkpoint of step 0.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <optional>

#include "trireme/checkpoint/writer.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/hf/companions.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/listing.hpp"
#include "trireme/hf/options.hpp"
#include "trireme/hf/weights.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::driver {

namespace {

// The model to import, as every rank knows it.
struct Source {
  std::string folder;
  hf::Config config;
  model::Options model;
  std::optional<hf::WeightSource> weights;  // always there after Open
};

void CheckRequest(const job::Job& job) {
  if (!job.line->resume.empty()) {
    throw InputError("command line: -r has no meaning for job.task = import",
                     "Leave it out: the run begins with the weights of hf.path.");
  }
  if (!job.options.checkpoint.start_from.empty()) {
    throw job.deck.Complain("checkpoint.start_from", "the weights come from hf.path",
                            "Leave it out.");
  }
  monitor::CheckRunFolder(job.options.job.output, false);
}

// Collective. Rank 0 reads the configuration and the headers, all check them; the head of a tied
// model is compared by all together.
void Open(const job::Job& job, Source& source) {
  const comm::Communicator& world = job.World();
  source.folder = hf::Read(job.deck).path;
  source.model = job.options.model;
  source.model.vocabulary = source.model.asked_vocabulary;
  std::string config, listing;
  world.Together([&] {
    if (!world.IsRoot()) return;
    CheckRequest(job);
    config = hf::ReadConfigText(source.folder);
    listing = hf::ToText(hf::Inspect(source.folder));
  });
  config = world.Broadcast(config);
  listing = world.Broadcast(listing);
  world.Together([&] {
    source.config = hf::ParseConfig(config, source.folder + "/" + hf::kConfigFile);
    source.weights.emplace(source.folder, hf::FromText(listing, source.folder),
                           source.config.family, source.model);
    source.weights->CheckTiedHead(world.Rank(), world.Size());
  });
}

// Deck of the new run: the job's, as if it had not been given for an import. Serial.
std::string RunDeck(const job::Job& job) {
  job::CommandLine line = *job.line;
  std::erase_if(line.overrides, [](const std::string& override) {
    return override.starts_with("job.task") || override.starts_with("hf.");
  });
  job::Sources sources = job::ReadSources(*job.schema, *job.line);
  sources.forgotten = {"job.task", "hf.path", "hf.dtype", "hf.shard_bytes"};
  return job::ParseDeck(*job.schema, line, sources).Resolved();
}

// The same on every rank.
nlohmann::json RunJson(const job::Job& job, const Source& source, const std::string& deck,
                       const std::string& imported) {
  nlohmann::json run = {{"step", 0},
                        {"epoch", 0},
                        {"model", job::ModelJson(source.model)},
                        {"imported", nlohmann::json::parse(imported)},
                        {"deck", deck},
                        {"date", job::DateNow(job.World())}};
  run.update(job::ProgramJson(job.runtime->Hosts().front()));
  return run;
}

// Collective. The checkpoint of step 0, without moments. Weights are read while it is written.
void WriteCheckpoint(const comm::Communicator& world, checkpoint::Writer& writer,
                     checkpoint::Order order, const std::exception_ptr& fault) {
  writer.Begin(std::move(order));
  const checkpoint::Outcome outcome = writer.Finish();
  world.Together([&] {
    if (fault) std::rethrow_exception(fault);  // a fault of the weights, not of the disk
  });
  if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
}

void Say(const Source& source, std::int64_t buffers) {
  const hf::WeightSource& weights = *source.weights;
  fmt::print("model   {}: {}, {}\n", source.folder, hf::NameOf(source.config.family),
             plan::DescribeModel(source.model));
  fmt::print("weights {} in {}\n", monitor::AsBytes(weights.Bytes()),
             monitor::Counted(std::ssize(weights.Files().files), "file"));
  fmt::print("memory  a rank: buffers {} + one tensor {}\n", monitor::AsBytes(buffers),
             monitor::AsBytes(weights.LargestTensor()));
  std::fflush(stdout);
  if (source.config.unknown.empty()) return;
  fmt::print(stderr, "trireme: warning: {}/{}: not known here, kept as they are: {}\n",
             source.folder, hf::kConfigFile, fmt::join(source.config.unknown, ", "));
}

}  // namespace

ExitCode RunImport(job::Job& job) {
  const comm::Communicator& world = job.World();

  // 1. What the folder holds, checked but for the weights' values.
  Source source;
  Open(job, source);

  // 2. The parts of the weights that the ranks read, and the writer of the checkpoint.
  std::exception_ptr fault;
  const checkpoint::ReadBlock read = [&](const tensor::StateBlock& block, std::int64_t first,
                                         std::int64_t last, void* to) {
    try {
      source.weights->Read(block, first, last, to);
    } catch (const Error&) {
      fault = std::current_exception();
      throw;
    }
  };
  checkpoint::Writer writer(world, {source.weights->Blocks(world.Rank(), world.Size()), {}, read},
                            {.writers = static_cast<int>(job.options.checkpoint.writers),
                             .io_hints = job.options.checkpoint.io_hints});
  if (world.IsRoot()) Say(source, writer.MemoryBytes());
  if (job.line->validate_only) {
    if (world.IsRoot()) fmt::print("valid: it can be imported; nothing was written\n");
    return ExitCode::kDone;
  }

  // 3. The run folder.
  std::string deck, imported;
  world.Together([&] {
    if (!world.IsRoot()) return;
    deck = RunDeck(job);
    imported = job::ImportedJson(source.folder).dump();
  });
  deck = world.Broadcast(deck);
  imported = world.Broadcast(imported);
  const std::string& output = job.options.job.output;
  hf::MakeFolderWhole(world, output, [&](const std::string& temporary) {
    checkpoint::Order order{.folder = temporary + "/checkpoints",
                            .run = RunJson(job, source, deck, imported)};
    WriteCheckpoint(world, writer, std::move(order), fault);
    world.Together([&] {
      if (!world.IsRoot()) return;
      const std::string part = temporary + "/" + hf::kRunPart;
      hf::MakeFolder(part);
      hf::CopyCompanions(source.folder, part);
      hf::WriteText(part + "/" + hf::kListingFile, hf::ToText(source.weights->Files()));
      hf::WriteText(temporary + "/deck.in", monitor::MarkEnds(deck));
    });
  });
  if (world.IsRoot()) {
    fmt::print("imported as {}: train it further with -r {} data.file=TOKENS\n", output, output);
    std::fflush(stdout);
  }
  return ExitCode::kDone;
}

}  // namespace trireme::driver
