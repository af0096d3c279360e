// job.task = export: the model of a checkpoint becomes a model folder of Hugging Face.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <variant>

#include "peak_memory.hpp"
#include "trireme/base/descriptor.hpp"
#include "trireme/base/positioned_file.hpp"
#include "trireme/base/posix_file.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/hf/companions.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/listing.hpp"
#include "trireme/hf/options.hpp"
#include "trireme/hf/weights.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostListingBytes = std::int64_t{256} << 20;
constexpr int kIndent = 2;  // of JSON, as transformers writes it

// The model to export and its files, as every rank knows them.
struct Task {
  hf::Options options;
  std::string checkpoint;
  std::string origin;       // the run's folder of the imported model's files; empty: it has none
  std::string config_text;  // of that folder
  hf::Family family = hf::Family::kLlama;
  model::Options model;
  hf::ExportPlan plan;
  std::optional<checkpoint::TensorReader> reader;  // always there after Open
};

// The folder with the files of the imported model that the checkpoint's run began with.
std::string OriginOf(const std::string& checkpoint) {
  const fs::path folder = fs::absolute(checkpoint).lexically_normal().parent_path();
  if (folder.filename() != "checkpoints") return {};
  const fs::path origin = folder.parent_path() / hf::kRunPart;
  std::error_code ignored;
  return fs::exists(origin / hf::kListingFile, ignored) ? origin.string() : std::string();
}

void CheckRequest(const app::Job& job, const Task& task) {
  if (job.start.candidates.empty()) {
    throw job.deck.Complain("job.task", "a trained model is needed",
                            "Name a run folder or a checkpoint with -r.");
  }
  if (task.options.path.empty()) {
    throw job.deck.Complain("hf.path", "no folder to write is named");
  }
}

// Throws InputError unless the configuration, which a user may have changed, is the model's.
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

void PlanFiles(const app::Job& job, const std::string& listing, Task& task) {
  if (task.origin.empty()) {
    task.family = hf::FamilyOf(task.model, job.deck);
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

// Collective. Reads what there is, and plans all files.
void Open(const app::Job& job, Task& task) {
  const comm::Communicator& world = job.World();
  std::string listing;
  world.Together([&] {
    task.options = hf::Read(job.deck);
    CheckRequest(job, task);
    task.checkpoint = job.start.candidates.front();
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
    task.reader.emplace(task.checkpoint, "model");
    task.model = job.options.model;
    task.model.vocabulary = VocabularyOf(*task.reader);
    task.model.asked_vocabulary = task.model.vocabulary;
    PlanFiles(job, listing, task);
  });
}

// Serial. Gives the files their sizes and headers.
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

// The imported configuration; with another type of weights if one was asked for.
std::string ImportedConfig(const Task& task) {
  if (task.options.dtype == hf::Storage::kSource) return task.config_text;
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(task.config_text);
  const char* const key = config.contains("dtype") ? "dtype" : "torch_dtype";
  config[key] = TorchName(task.options.dtype);
  return config.dump(kIndent) + "\n";
}

// The tokenizer of the token file, if that is there.
struct Words {
  std::map<std::string, std::string> files;
  std::int64_t eos = -1;
  std::string eos_text;
};

// Collective.
Words ReadWords(const app::Job& job) {
  std::error_code ignored;
  const std::string& path = job.options.data.file;
  const bool there = fs::is_regular_file(path, ignored);
  if (job.World().Max(job.World().IsRoot() && there ? std::int64_t{1} : 0) == 0) return {};
  data::Keeping keeping(data::Staging::kNone, {false, false, false}, 0);
  if (job.options.model.Translates()) keeping.side = data::Side::kTarget;
  const data::TokenFile tokens(job.World(), job.runtime->Node(), path, keeping);
  job.World().Together([&] {
    if (job.World().IsRoot()) app::CheckVocabulary(*job.start.record, tokens);
  });
  const data::Vocabulary& words = tokens.Words();
  return {tokens.TokenizerFiles(), words.eos, words.words[static_cast<std::size_t>(words.eos)]};
}

// Serial. Files beside the weights of a model that was not imported.
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

void Say(const Task& task, const Words& words, const PeakMemory& memory) {
  std::int64_t bytes = 0;
  for (const hf::ListedFile& file : task.plan.listing.files) bytes += file.contents.bytes;
  fmt::print("model   {}: {}, {}\n", task.checkpoint, hf::NameOf(task.family),
             train::DescribeModel(task.model));
  fmt::print("weights {} in {}\n", report::AsBytes(bytes),
             report::Counted(std::ssize(task.plan.listing.files), "file"));
  fmt::print("{}\n", Describe(memory));
  if (task.origin.empty() && words.files.empty()) {
    fmt::print("no tokenizer: the token file is not there, or has none that others can read\n");
  }
  std::fflush(stdout);
}

// Collective. Of the largest rank.
PeakMemory MemoryOf(const app::Job& job, const Task& task) {
  PeakMemory memory{.program = report::PeakResidentBytes()};
  job.World().Together([&] {
    const hf::PassingMemory passing =
        hf::ExportMemory(task.plan, task.family, task.model, *task.reader, job.stream.threads);
    memory.buffers = passing.buffers;
    memory.tensor = passing.tensor;
    if (job.World().IsRoot() && !task.origin.empty()) {
      memory.texts = 2 * hf::CompanionBytes(task.origin);
    }
  });
  return LargestOf(job.World(), memory);
}

}  // namespace

ExitCode RunExport(app::Job& job) {
  const comm::Communicator& world = job.World();
  Task task;
  Open(job, task);
  Words words;
  if (task.origin.empty()) words = ReadWords(job);
  world.Together([&] {
    if (!job.options.model.Translates() || words.eos >= 0) return;
    throw job.deck.Complain("data.file", "is not there: its eos begins each translation",
                            "Name the file of pairs that the model was trained on.");
  });
  const PeakMemory memory = MemoryOf(job, task);
  if (world.IsRoot()) Say(task, words, memory);
  if (job.line->validate_only) {
    if (world.IsRoot()) fmt::print("valid: it can be exported; nothing was written\n");
    return ExitCode::kDone;
  }
  hf::MakeFolderWhole(world, task.options.path, [&](const std::string& temporary) {
    world.Together([&] {
      if (world.IsRoot()) MakeFiles(task.plan, temporary);
    });
    world.Together([&] {
      hf::WriteShare(task.plan, task.family, task.model, *task.reader, temporary,
                     {world.Rank(), world.Size(), job.stream.threads});
      if (world.IsRoot()) WriteCompanions(task, words, temporary);
    });
  });
  if (world.IsRoot()) fmt::print("exported to {}\n", task.options.path);
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
