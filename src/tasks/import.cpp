// job.task = import and export: from a Hugging Face model folder to a run's checkpoint, and back.
#include <fmt/ranges.h>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "root.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/weights.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::tasks {

namespace {

namespace fs = std::filesystem;

// Peak memory of a rank in bytes, printed before any weights are converted.
struct PeakMemory {
  std::int64_t program = 0;  // used by the rank so far: code, libraries, lists of tensors
  std::int64_t buffers = 0;  // pieces of weights in transit
  std::int64_t tensor = 0;   // the largest tensor that is held as a whole
  std::int64_t texts = 0;    // files that are copied along with the weights
  std::int64_t Total() const { return program + buffers + tensor + texts; }
};

// Collective. The largest value of each term over all ranks. copied, on rank 0: folder whose files
// beside the weights are copied; empty: none.
PeakMemory PeakOf(const comm::Communicator& world, std::int64_t program,
                  const hf::PassingMemory& passing, const std::string& copied) {
  std::int64_t texts = 0;
  AtRoot(world, [&] {
    if (!copied.empty()) texts = 2 * hf::CompanionBytes(copied);
  });
  return {.program = world.Max(program),
          .buffers = world.Max(passing.buffers),
          .tensor = world.Max(passing.tensor),
          .texts = world.Max(texts)};
}

// Prints what is converted and the memory it takes: "memory  per rank: program 41 MiB + buffers 76
// MiB + one tensor 9.0 MiB = 126 MiB (132,120,576 bytes)".
void SayModel(const std::string& path, hf::Family family, const model::Options& model,
              std::int64_t bytes, const hf::Listing& listing, const PeakMemory& memory) {
  using report::AsBytes;
  Say("model   {}: {}, {}\nweights {} in {}", path, hf::NameOf(family), train::DescribeModel(model),
      AsBytes(bytes), report::Counted(std::ssize(listing.files), "file"));
  Say("memory  per rank: program {} + buffers {}{}{} = {} ({} bytes)", AsBytes(memory.program),
      AsBytes(memory.buffers),
      memory.tensor > 0 ? fmt::format(" + one tensor {}", AsBytes(memory.tensor)) : "",
      memory.texts > 0 ? fmt::format(" + other files {}", AsBytes(memory.texts)) : "",
      AsBytes(memory.Total()), report::WithThousands(memory.Total()));
}

// The model to import; the same on every rank.
struct Source {
  std::string folder;
  hf::Config config;
  model::Options model;
  std::optional<hf::WeightSource> weights;  // always set after Open
};

// Keeps the first fault of the weights in checkpoint order, whichever thread meets it first.
class Fault {
 public:
  // Notes the current exception, from any thread. block: an element of the writer's list.
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

// Collective. Rank 0 reads the headers and all ranks check them. All together compare a tied
// model's head with its embedding.
void Open(const app::Request& request, const comm::Communicator& world, Source& source) {
  source.folder = hf::Read(request.deck).path;
  source.model = request.model;
  source.model.vocabulary = source.model.asked_vocabulary;
  const std::string listing = FromRoot(world, [&] {
    if (!request.line.resume.empty()) {
      throw InputError("command line: -r has no meaning for job.task = import",
                       "Leave it out: the run begins with the weights of hf.path.");
    }
    if (!request.checkpoint.start_from.empty()) {
      throw request.deck.Complain("checkpoint.start_from", "the weights come from hf.path",
                                  "Leave it out.");
    }
    report::CheckRunFolder(request.job.output, false);
    return hf::ToText(hf::Inspect(source.folder));
  });
  world.Together([&] {
    source.config = hf::ParseConfig(request.sources.config_text, request.sources.config_path);
    source.weights.emplace(source.folder, hf::FromText(listing, source.folder),
                           source.config.family, source.model);
    source.weights->CheckTiedHead(world.Rank(), world.Size());
  });
}

// The new run's deck: the job's deck without the keys of the import. Serial.
std::string RunDeck(const app::Request& request) {
  app::CommandLine line = request.line;
  std::erase_if(line.overrides, [](const std::string& override) {
    return override.starts_with("job.task") || override.starts_with("hf.");
  });
  app::Sources sources = request.sources;
  sources.forgotten = {"job.task", "hf.path", "hf.dtype", "hf.shard_bytes"};
  return app::ParseDeck(*request.schema, line, sources).Resolved();
}

// run.json of step 0, the same on every rank.
nlohmann::json RunJson(const app::Ranks& ranks, const Source& source, const std::string& deck,
                       const std::string& imported) {
  nlohmann::json run = {{"step", 0},
                        {"epoch", 0},
                        {"model", app::ModelJson(source.model)},
                        {"imported", nlohmann::json::parse(imported)},
                        {"deck", deck},
                        {"date", app::DateNow(ranks.World())}};
  run.update(app::ProgramJson(ranks.Hosts().First()));
  return run;
}

// Number of tokens of the folder's tokenizer; 0 if there is none that we can read.
std::int64_t TokensOf(const std::string& folder) {
  for (const data::TokenizerKind kind :
       {data::TokenizerKind::kBpe, data::TokenizerKind::kSentencePiece}) {
    try {
      return data::Make(data::ReadFiles(folder, kind), folder)->VocabularySize();
    } catch (const Error&) {
      continue;
    }
  }
  return 0;
}

void SayImport(const Source& source, const PeakMemory& memory) {
  SayModel(source.folder, source.config.family, source.model, source.weights->Bytes(),
           source.weights->Files(), memory);
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

constexpr std::int64_t kMostListingBytes = std::int64_t{256} << 20;
constexpr int kIndent = 2;  // of JSON, as transformers indents it

// The model to export and its files; the same on every rank.
struct Task {
  hf::Options options;
  std::string checkpoint;
  std::string origin;       // the run's folder with the imported model's files; empty: not imported
  std::string config_text;  // config.json of that folder
  hf::Family family = hf::Family::kLlama;
  model::Options model;
  hf::ExportPlan plan;
  std::optional<checkpoint::TensorReader> reader;  // always set after Open
};

// Folder in which the checkpoint's run keeps the files of its imported model; empty: none.
std::string OriginOf(const std::string& checkpoint) {
  const fs::path folder = fs::absolute(checkpoint).lexically_normal().parent_path();
  if (folder.filename() != "checkpoints") return {};
  const fs::path origin = folder.parent_path() / hf::kRunPart;
  std::error_code ignored;
  return fs::exists(origin / hf::kListingFile, ignored) ? origin.string() : std::string();
}

// Throws InputError unless the configuration, which a user may have changed, describes the model.
void RequireSame(const hf::Config& config, const model::Options& model, const std::string& path) {
  const nlohmann::json ours = app::ModelJson(model);
  for (const model::Setting& setting : model::SettingsOf(model)) {
    if (!setting.of_function || !config.model.contains(setting.name)) continue;
    const nlohmann::json &theirs = config.model.at(setting.name), &mine = ours.at(setting.name);
    if (theirs == mine) continue;
    throw InputError(fmt::format("{}: says model.{} = {}, but the checkpoint has {}", path,
                                 setting.name, theirs.dump(), mine.dump()),
                     "Restore the file, or move the run's hf folder away to export afresh.");
  }
}

std::int64_t VocabularyOf(const checkpoint::TensorReader& reader) {
  for (const checkpoint::StoredTensor& tensor : reader.Tensors()) {
    if (tensor.name == "embedding.token.weight") return tensor.shape.front();
  }
  throw InputError("the checkpoint has no tensor embedding.token.weight");
}

void PlanFiles(const app::Request& request, const std::string& listing, Task& task) {
  if (task.origin.empty()) {
    task.family = hf::FamilyOf(task.model, request.deck);
    task.plan = hf::PlanAfresh(task.family, task.model, task.options);
    return;
  }
  const std::string path = task.origin + "/" + hf::kConfigFile;
  const hf::Config config = hf::ParseConfig(task.config_text, path);
  task.family = config.family;
  RequireSame(config, task.model, path);
  task.plan = hf::PlanLike(hf::FromText(listing, task.origin + "/" + hf::kListingFile), task.family,
                           task.model, task.options);
}

// Collective. Reads the checkpoint and its run folder, and plans all files.
void Open(const app::Request& request, const comm::Communicator& world, const app::Start& start,
          Task& task) {
  std::string listing;
  world.Together([&] {
    task.options = hf::Read(request.deck);
    if (start.candidates.empty()) {
      throw request.deck.Complain("job.task", "a trained model is needed",
                                  "Name a run folder or a checkpoint with -r.");
    }
    if (task.options.path.empty()) {
      throw request.deck.Complain("hf.path", "no folder to write is named");
    }
    task.checkpoint = start.candidates.front();
    if (!world.IsRoot()) return;
    task.origin = OriginOf(task.checkpoint);
    if (task.origin.empty()) return;
    task.config_text = hf::ReadConfigText(task.origin);
    listing = ReadText(task.origin + "/" + hf::kListingFile, kMostListingBytes);
  });
  task.origin = world.Broadcast(task.origin);
  task.config_text = world.Broadcast(task.config_text);
  listing = world.Broadcast(listing);
  world.Together([&] {
    const bool averages = checkpoint::HasAverages(task.checkpoint);
    if (averages && world.IsRoot()) SayAverages(task.checkpoint);
    task.reader.emplace(task.checkpoint, averages ? checkpoint::kAverage : "model");
    task.model = request.model;
    task.model.vocabulary = VocabularyOf(*task.reader);
    task.model.asked_vocabulary = task.model.vocabulary;
    PlanFiles(request, listing, task);
  });
}

// Serial. Creates the weight files with their headers and full sizes.
void MakeFiles(const hf::ExportPlan& plan, const std::string& folder) {
  for (std::size_t i = 0; i < plan.headers.size(); ++i) {
    const hf::ListedFile& file = plan.listing.files[i];
    const std::string path = folder + "/" + file.name;
    bool held = false;
    if (const int failure = Reserve(path, file.contents.bytes, held); failure != 0) {
      throw RunError(fmt::format("{}: {} cannot be reserved: {}", path,
                                 Mebibytes(file.contents.bytes), ErrorText(failure)));
    }
    const PositionedFile header(path, PositionedFile::Access::kWrite, ExitCode::kFailed);
    header.Write(plan.headers[i].data(), std::ssize(plan.headers[i]), 0);
    header.Sync();
  }
}

const char* TorchName(hf::Storage storage) {
  return storage == hf::Storage::kBf16   ? "bfloat16"
         : storage == hf::Storage::kFp16 ? "float16"
                                         : "float32";
}

// The imported configuration, with the type of weights changed if another was asked for.
std::string ImportedConfig(const Task& task) {
  if (task.options.dtype == hf::Storage::kSource) return task.config_text;
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(task.config_text);
  const char* const key = config.contains("dtype") ? "dtype" : "torch_dtype";
  config[key] = TorchName(task.options.dtype);
  return config.dump(kIndent) + "\n";
}

// The token file's tokenizer; empty if there is no token file.
struct Words {
  std::map<std::string, std::string> files;
  std::int64_t eos = -1;
  std::string eos_text;
};

// Collective. Reads the tokenizer from the token file.
Words ReadWords(const app::Request& request, const app::Ranks& ranks, const app::Start& start) {
  std::error_code ignored;
  const std::string& path = request.data.file;
  const bool there = fs::is_regular_file(path, ignored);
  if (ranks.World().Max(ranks.World().IsRoot() && there ? std::int64_t{1} : 0) == 0) return {};
  data::Keeping keeping(data::Staging::kNone, {false, false, false}, 0);
  if (request.model.Translates()) keeping.side = data::Side::kTarget;
  const data::TokenFile tokens(ranks.World(), ranks.Node(), path, keeping);
  AtRoot(ranks.World(), [&] { app::CheckVocabulary(*start.record, tokens); });
  const data::Vocabulary& words = tokens.Words();
  return {tokens.TokenizerFiles(), words.eos, words.words[static_cast<std::size_t>(words.eos)]};
}

// Serial. Writes the files beside the weights for a model that was not imported.
void WriteAfresh(const Task& task, const Words& words, const std::string& folder) {
  const auto write = [&](const char* name, const nlohmann::json& json) {
    hf::WriteText(folder + "/" + name, json.dump(kIndent) + "\n");
  };
  write(hf::kConfigFile,
        hf::MakeConfig(task.family, task.model, TorchName(task.options.dtype), words.eos));
  nlohmann::json generation = {{"_from_model_config", true}};
  if (task.family == hf::Family::kMarian) {
    generation["decoder_start_token_id"] = generation["pad_token_id"] = words.eos;
    generation["max_length"] = task.model.max_positions;
  }
  if (words.eos >= 0) generation["bos_token_id"] = generation["eos_token_id"] = words.eos;
  write("generation_config.json", generation);
  for (const auto& [name, contents] : words.files) hf::WriteText(folder + "/" + name, contents);
  const bool fast = words.files.contains("tokenizer.json");
  if (!fast && !words.files.contains("vocab.json")) return;
  write("tokenizer_config.json",
        {{"bos_token", words.eos_text},
         {"eos_token", words.eos_text},
         {"model_max_length", task.model.max_positions},
         {"tokenizer_class", fast ? "PreTrainedTokenizerFast" : "GPT2Tokenizer"}});
}

void WriteCompanions(const Task& task, const Words& words, const std::string& folder) {
  if (task.origin.empty()) {
    WriteAfresh(task, words, folder);
  } else {
    hf::CopyCompanions(task.origin, folder);
    hf::WriteText(folder + "/" + hf::kConfigFile, ImportedConfig(task));
  }
  if (!task.plan.listing.indexed) return;
  hf::WriteText(folder + "/" + hf::kIndexFile, hf::IndexText(task.plan.listing));
}

}  // namespace

ExitCode RunImport(app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();

  // 1. Read the folder and check everything except the weights' values.
  Source source;
  Open(request, world, source);

  // 2. Choose the parts of the weights that each rank reads; make the checkpoint's writer.
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
                            {.writers = static_cast<int>(request.checkpoint.writers),
                             .io_hints = request.checkpoint.io_hints,
                             .threads = job.device.stream.threads});
  hf::PassingMemory passing = source.weights->Memory(job.device.stream.threads);
  passing.buffers += writer.MemoryBytes() + writer.CheckBytes();
  const PeakMemory memory = PeakOf(world, program, passing, source.folder);
  if (world.IsRoot()) SayImport(source, memory);
  if (request.line.validate_only) {
    if (world.IsRoot()) fmt::print("valid: it can be imported; nothing was written\n");
    return ExitCode::kDone;
  }

  // 3. Make the run folder.
  const std::string deck = FromRoot(world, [&] { return RunDeck(request); });
  const std::string imported =
      FromRoot(world, [&] { return app::ImportedJson(source.folder).dump(); });
  const std::string& output = request.job.output;
  hf::MakeFolderWhole(world, output, [&](const std::string& temporary) {
    // Write the checkpoint of step 0, without moments. Weights are read while it is written.
    writer.Begin(
        {.folder = temporary + "/checkpoints", .run = RunJson(job.ranks, source, deck, imported)});
    const checkpoint::Outcome outcome = writer.Finish();
    world.Together([&] { fault.Check(); });  // faults of the weights come before those of the disk
    if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
    AtRoot(world, [&] {
      const std::string part = temporary + "/" + hf::kRunPart;
      hf::MakeFolder(part);
      hf::CopyCompanions(source.folder, part);
      hf::WriteText(part + "/" + hf::kListingFile, hf::ToText(source.weights->Files()));
      hf::WriteText(temporary + "/deck.in", report::MarkEnds(deck));
    });
  });
  if (world.IsRoot()) {
    Say("imported as {}: train it further with -r {} data.file=TOKENS", output, output);
  }
  return ExitCode::kDone;
}

// job.task = export: the model of a checkpoint becomes a model folder of Hugging Face.

ExitCode RunExport(app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  Task task;
  Open(request, world, job.start, task);
  Words words;
  if (task.origin.empty()) words = ReadWords(request, job.ranks, job.start);
  world.Together([&] {
    if (!request.model.Translates() || words.eos >= 0) return;
    throw request.deck.Complain("data.file", "is not there: its eos begins each translation",
                                "Name the file of pairs that the model was trained on.");
  });
  const std::int64_t program = report::PeakResidentBytes();
  hf::PassingMemory passing;
  world.Together([&] {
    passing = hf::ExportMemory(task.plan, task.family, task.model, *task.reader,
                               job.device.stream.threads);
  });
  const PeakMemory memory = PeakOf(world, program, passing, task.origin);
  if (world.IsRoot()) {
    std::int64_t bytes = 0;
    for (const hf::ListedFile& file : task.plan.listing.files) bytes += file.contents.bytes;
    SayModel(task.checkpoint, task.family, task.model, bytes, task.plan.listing, memory);
    if (task.origin.empty() && words.files.empty()) {
      Say("no tokenizer: the token file is not there, or has none that others can read");
    }
  }
  if (request.line.validate_only) {
    if (world.IsRoot()) fmt::print("valid: it can be exported; nothing was written\n");
    return ExitCode::kDone;
  }
  hf::MakeFolderWhole(world, task.options.path, [&](const std::string& temporary) {
    AtRoot(world, [&] { MakeFiles(task.plan, temporary); });
    world.Together([&] {
      hf::WriteShare(task.plan, task.family, task.model, *task.reader, temporary,
                     {world.Rank(), world.Size(), job.device.stream.threads});
      if (world.IsRoot()) WriteCompanions(task, words, temporary);
    });
  });
  if (world.IsRoot()) fmt::print("exported to {}\n", task.options.path);
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
