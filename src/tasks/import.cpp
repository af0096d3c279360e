// job.task = import: a model folder of Hugging Face becomes a run with a checkpoint of step 0.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "peak_memory.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/hf/companions.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/listing.hpp"
#include "trireme/hf/options.hpp"
#include "trireme/hf/weights.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::tasks {

namespace {

// The model to import, as every rank knows it.
struct Source {
  std::string folder;
  hf::Config config;
  model::Options model;
  std::optional<hf::WeightSource> weights;  // always there after Open
};

// The first fault of the weights, in the order of the checkpoint, whichever thread meets it first.
class Fault {
 public:
  // Notes the exception under way, from any thread. block: of the list that the writer has.
  void Note(const kernels::StateBlock& block, std::int64_t first) {
    const std::lock_guard lock(mutex_);
    const std::pair place(&block, first);
    if (failure_ && !(place < place_)) return;
    place_ = place;
    failure_ = std::current_exception();
  }
  void Check() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::pair<const kernels::StateBlock*, std::int64_t> place_;
  std::exception_ptr failure_;
};

void CheckRequest(const app::Job& job) {
  if (!job.line->resume.empty()) {
    throw InputError("command line: -r has no meaning for job.task = import",
                     "Leave it out: the run begins with the weights of hf.path.");
  }
  if (!job.options.checkpoint.start_from.empty()) {
    throw job.deck.Complain("checkpoint.start_from", "the weights come from hf.path",
                            "Leave it out.");
  }
  report::CheckRunFolder(job.options.job.output, false);
}

// Collective. Rank 0 reads the headers, all check them; the head of a tied
// model is compared by all together.
void Open(const app::Job& job, Source& source) {
  const comm::Communicator& world = job.World();
  source.folder = hf::Read(job.deck).path;
  source.model = job.options.model;
  source.model.vocabulary = source.model.asked_vocabulary;
  std::string listing;
  world.Together([&] {
    if (!world.IsRoot()) return;
    CheckRequest(job);
    listing = hf::ToText(hf::Inspect(source.folder));
  });
  listing = world.Broadcast(listing);
  world.Together([&] {
    source.config = hf::ParseConfig(job.sources.config_text, job.sources.config_path);
    source.weights.emplace(source.folder, hf::FromText(listing, source.folder),
                           source.config.family, source.model);
    source.weights->CheckTiedHead(world.Rank(), world.Size());
  });
}

// Deck of the new run: the job's, as if it had not been given for an import. Serial.
std::string RunDeck(const app::Job& job) {
  app::CommandLine line = *job.line;
  std::erase_if(line.overrides, [](const std::string& override) {
    return override.starts_with("job.task") || override.starts_with("hf.");
  });
  app::Sources sources = job.sources;
  sources.forgotten = {"job.task", "hf.path", "hf.dtype", "hf.shard_bytes"};
  return app::ParseDeck(*job.schema, line, sources).Resolved();
}

// The same on every rank.
nlohmann::json RunJson(const app::Job& job, const Source& source, const std::string& deck,
                       const std::string& imported) {
  nlohmann::json run = {{"step", 0},
                        {"epoch", 0},
                        {"model", app::ModelJson(source.model)},
                        {"imported", nlohmann::json::parse(imported)},
                        {"deck", deck},
                        {"date", app::DateNow(job.World())}};
  run.update(app::ProgramJson(job.runtime->Hosts().First()));
  return run;
}

// Collective. The checkpoint of step 0, without moments. Weights are read while it is written.
void WriteCheckpoint(const comm::Communicator& world, checkpoint::Writer& writer,
                     checkpoint::Order order, const Fault& fault) {
  writer.Begin(std::move(order));
  const checkpoint::Outcome outcome = writer.Finish();
  world.Together([&] {
    fault.Check();  // of the weights, not of the disk
  });
  if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
}

// Of the tokenizer in the folder; 0: there is none, or none that we read.
std::int64_t TokensOf(const std::string& folder) {
  for (const data::TokenizerKind kind : {data::TokenizerKind::kBpe, data::TokenizerKind::kSentencePiece}) {
    try {
      return data::Make(data::ReadFiles(folder, kind), folder)->VocabularySize();
    } catch (const Error&) {
      continue;
    }
  }
  return 0;
}

void Say(const Source& source, const PeakMemory& memory) {
  const hf::WeightSource& weights = *source.weights;
  fmt::print("model   {}: {}, {}\n", source.folder, hf::NameOf(source.config.family),
             train::DescribeModel(source.model));
  fmt::print("weights {} in {}\n", report::AsBytes(weights.Bytes()),
             report::Counted(std::ssize(weights.Files().files), "file"));
  fmt::print("{}\n", Describe(memory));
  std::fflush(stdout);
  if (const std::int64_t tokens = TokensOf(source.folder); tokens > source.model.vocabulary) {
    fmt::print(stderr,
               "trireme: warning: {}: its tokenizer has {} tokens, the model {}: a text that holds "
               "one of the others cannot be used with it\n",
               source.folder, tokens, source.model.vocabulary);
  }
  if (source.config.unknown.empty()) return;
  fmt::print(stderr, "trireme: warning: {}/{}: not known here, kept as they are: {}\n",
             source.folder, hf::kConfigFile, fmt::join(source.config.unknown, ", "));
}

// Collective. Of the largest rank. program: bytes taken before the writer was made.
PeakMemory MemoryOf(const app::Job& job, const Source& source, const checkpoint::Writer& writer,
                    std::int64_t program) {
  const comm::Communicator& world = job.World();
  const hf::PassingMemory passing = source.weights->Memory(job.stream.threads);
  return LargestOf(world, {.program = program,
                           .buffers = passing.buffers + writer.MemoryBytes() + writer.CheckBytes(),
                           .tensor = passing.tensor,
                           .texts = world.IsRoot() ? 2 * hf::CompanionBytes(source.folder) : 0});
}

}  // namespace

ExitCode RunImport(app::Job& job) {
  const comm::Communicator& world = job.World();

  // 1. What the folder holds, checked but for the weights' values.
  Source source;
  Open(job, source);

  // 2. The parts of the weights that the ranks read, and the writer of the checkpoint.
  const std::int64_t program = report::PeakResidentBytes();
  Fault fault;
  const checkpoint::ReadBlock read = [&](const kernels::StateBlock& block, std::int64_t first,
                                         std::int64_t last, void* to) {
    try {
      source.weights->Read(block, first, last, to);
    } catch (const Error&) {
      fault.Note(block, first);
      throw;
    }
  };
  checkpoint::Writer writer(world, {source.weights->Blocks(world.Rank(), world.Size()), {}, read},
                            {.writers = static_cast<int>(job.options.checkpoint.writers),
                             .io_hints = job.options.checkpoint.io_hints,
                             .threads = job.stream.threads});
  const PeakMemory memory = MemoryOf(job, source, writer, program);
  if (world.IsRoot()) Say(source, memory);
  if (job.line->validate_only) {
    if (world.IsRoot()) fmt::print("valid: it can be imported; nothing was written\n");
    return ExitCode::kDone;
  }

  // 3. The run folder.
  std::string deck, imported;
  world.Together([&] {
    if (!world.IsRoot()) return;
    deck = RunDeck(job);
    imported = app::ImportedJson(source.folder).dump();
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
      hf::WriteText(temporary + "/deck.in", report::MarkEnds(deck));
    });
  });
  if (world.IsRoot()) {
    fmt::print("imported as {}: train it further with -r {} data.file=TOKENS\n", output, output);
    std::fflush(stdout);
  }
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
