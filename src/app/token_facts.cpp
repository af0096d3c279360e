// Job: facts about its token files, the position from which it continues, and opening the files.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "trireme/app/job.hpp"
#include "trireme/app/run_record.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/hf/weights.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::app {

namespace {

// Whether the job computes losses of the valid or test split.
bool Evaluates(const DeckOptions& options) {
  const Task task = options.job.task;
  return task == Task::kEvaluate ||
         (task == Task::kTrain && options.monitor.validate_every_steps > 0);
}

// What a job keeps of a token file: the train split only if it trains; valid and test only of the
// `first` file of a mixture. reads: whether this rank reads a stream.
data::Keeping KeepingOf(const DeckOptions& options, bool first, bool reads = true) {
  const bool trains = ReadsTraining(options.job.task);
  const bool evaluates = first && Evaluates(options);
  const bool validates = evaluates && options.data.validation.empty();
  return {options.data.staging, {trains, validates, evaluates}, options.data.read_ahead, reads};
}

data::Keeping KeepingOfSet(const DeckOptions& options, bool reads = true) {
  const data::Options& data = options.data;
  return {data.staging, {false, Evaluates(options), false}, data.read_ahead, reads};
}

// One rank's share of the bytes that are kept. shared_by: as in FactsOf.
std::int64_t ShareOf(std::int64_t bytes, data::Staging staging, int shared_by) {
  if (staging != data::Staging::kSharedMemory) return bytes;
  return shared_by == 0 ? 0 : bytes / shared_by;
}

// Adds the bytes that are kept of a file, and notes the first split read that has no documents.
void AddFile(const std::string& path, const data::TokenCounts& counts, const data::Keeping& keeping,
             int shared_by, train::TokenFacts& facts) {
  facts.bytes += ShareOf(data::BytesOf(counts, keeping), keeping.staging, shared_by);
  facts.staged += data::StagedBytesOf(counts, keeping);
  for (const data::Split split : data::kSplits) {
    const auto i = static_cast<std::size_t>(split);
    if (!keeping.splits[i] || counts.documents[i] || !facts.undocumented.empty()) continue;
    facts.undocumented =
        fmt::format("{} has no /{}/documents", std::filesystem::path(path).filename().string(),
                    data::NameOf(split));
  }
}

std::string DescribeVocabulary(const data::TokenCounts& counts) {
  return fmt::format(
      "{} words by the tokenizer {}{}, sha256 {:.12}, eos {}, unk {}",
      report::WithThousands(counts.vocabulary), counts.tokenizer,
      counts.tokenizer_sha256.empty() ? "" : fmt::format(" ({:.12})", counts.tokenizer_sha256),
      counts.vocabulary_sha256, counts.eos, counts.unk);
}

// Throws InputError unless token ids mean the same in both files.
void RequireOneVocabulary(const char* key, const std::string& path, const data::TokenCounts& counts,
                          const std::string& first_path, const data::TokenCounts& first,
                          const deck::Deck& deck) {
  if (counts.vocabulary_sha256 == first.vocabulary_sha256 && counts.tokenizer == first.tokenizer &&
      counts.tokenizer_sha256 == first.tokenizer_sha256 && counts.eos == first.eos &&
      counts.unk == first.unk) {
    return;
  }
  throw deck.Complain(key,
                      fmt::format("{} has another vocabulary than {}: {}; {}", path, first_path,
                                  DescribeVocabulary(counts), DescribeVocabulary(first)),
                      "Tokenise all texts with one tokenizer and one vocabulary.");
}

// Adds the sets of data.validation. first: counts of the deck's token file.
void AddValidation(const DeckOptions& options, const deck::Deck& deck, int shared_by,
                   data::KnownFiles* known, const data::TokenCounts& first,
                   train::TokenFacts& facts) {
  if (options.job.task != Task::kTrain && options.job.task != Task::kEvaluate) return;
  for (const data::ValidationFile& set : options.data.validation) {
    std::error_code ignored;
    if (std::filesystem::status(set.path, ignored).type() ==
        std::filesystem::file_type::not_found) {
      throw deck.Complain("data.validation", fmt::format("{}: no such file", set.path),
                          "Check the path, or write the file with job.task = tokenize.");
    }
    const data::TokenCounts counts = data::CountTokens(set.path, known);
    RequireOneVocabulary("data.validation", set.path, counts, options.data.file, first, deck);
    AddFile(set.path, counts, KeepingOfSet(options), shared_by, facts);
  }
}

// Facts about a file of pairs.

// Refuses tasks and keys that do not support pairs yet.
void Check(const DeckOptions& options, const deck::Deck& deck) {
  const auto refuse = [&](bool wrong, const char* key, const char* what, const char* hint) {
    if (wrong) throw deck.Complain(key, what, hint);
  };
  const Task task = options.job.task;
  refuse(task != Task::kTrain && task != Task::kEvaluate && task != Task::kGenerate &&
             task != Task::kVerify && task != Task::kPlan && task != Task::kScaling,
         "job.task", "encoder-decoder models have no such task",
         "Use job.task = train, evaluate, generate, verify, plan or scaling, or model.kind = "
         "decoder.");
  refuse(!options.data.mixture.empty(), "data.mixture", "files of pairs are not mixed",
         "Name one file of pairs with data.file.");
  refuse(!options.data.validation.empty(), "data.validation",
         "pairs are validated on their own valid split", "Leave this key out.");
  refuse(data::IsStream(options.data.staging), "data.staging", "pairs are not read ahead",
         "Use data.staging = shared_memory.");
  refuse(options.training.on_spike == train::OnSpike::kRollback, "run.on_spike",
         "batches of pairs have one order, and none is skipped", "Use run.on_spike = report.");
  refuse(options.data.stride != options.data.sequence_length, "data.stride",
         "pairs of texts are not cut into windows", "Leave this key out.");
}

// True for tasks whose plan depends on the batches of the training split.
bool NeedsBatches(Task task) {
  return ReadsTraining(task) || task == Task::kVerify || task == Task::kPlan;
}

// Counts the batches of an epoch, for which it reads the lengths of the training split's pairs.
void CountBatches(const DeckOptions& options, train::PairFacts& facts) {
  const data::PairBatches batches(facts.pairs,
                                  data::LengthsOf(options.data.file, data::Split::kTrain),
                                  data::BatchesOf(options.data, options.machine.seed));
  facts.typical = batches.Typical();
  facts.steps = batches.StepsPerEpoch();
  facts.batch = 0;
  for (std::int64_t step = 0; step < facts.steps; ++step) {
    facts.batch = std::max(facts.batch, batches.Shape(step).pairs);
  }
}

// FactsOf for a file of pairs. Counts batches only if the task's plan depends on them.
train::TokenFacts FactsOfPairs(const DeckOptions& options, const deck::Deck& deck, int shared_by) {
  Check(options, deck);
  const data::PairCounts counts = data::CountPairs(options.data.file);
  train::TokenFacts facts;
  facts.vocabulary = counts.target_vocabulary;
  facts.train = counts.target_tokens.front();
  std::int64_t tokens = 0;
  for (const std::int64_t count : counts.source_tokens) tokens += count;
  for (const std::int64_t count : counts.target_tokens) tokens += count;
  facts.bytes = ShareOf(tokens * static_cast<std::int64_t>(sizeof(std::int32_t)),
                        options.data.staging, shared_by);
  facts.source = std::filesystem::path(options.data.file).filename().string();
  facts.contents.resize(1);
  train::PairFacts pairs;
  pairs.source_vocabulary = counts.source_vocabulary;
  pairs.shared_vocabulary = counts.shared_vocabulary;
  pairs.pairs = counts.pairs.front();
  if (NeedsBatches(options.job.task)) CountBatches(options, pairs);
  facts.pairs = pairs;
  return facts;
}

}  // namespace

train::TokenFacts FactsOf(const DeckOptions& options, const deck::Deck& deck, int shared_by,
                          data::KnownFiles* known) {
  if (options.model.Translates()) return FactsOfPairs(options, deck, shared_by);
  std::vector<data::MixtureFile> files = options.data.mixture;
  const bool mixed = !files.empty();
  if (mixed) {
    data::CheckMixtureFiles(files, deck);
  } else {
    files.push_back({options.data.file, {}});
  }
  train::TokenFacts facts;
  data::TokenCounts first;
  for (const data::MixtureFile& file : files) {
    const data::TokenCounts counts = data::CountTokens(file.path, known);
    const bool is_first = facts.contents.empty();
    if (is_first) first = counts;
    RequireOneVocabulary("data.mixture", file.path, counts, options.data.file, first, deck);
    AddFile(file.path, counts, KeepingOf(options, is_first), shared_by, facts);
    facts.train += counts.tokens.front();
    facts.source += is_first ? "" : " + ";
    facts.source += std::filesystem::path(file.path).filename().string();
    if (mixed) facts.sources.push_back({counts.tokens.front(), file.proportion});
    facts.contents.push_back(counts.source_sha256);
    facts.loss_mask = facts.loss_mask || counts.masks.front();
  }
  AddValidation(options, deck, shared_by, known, first, facts);
  facts.vocabulary = first.vocabulary;
  if (data::IsStream(options.data.staging)) facts.read_ahead = options.data.read_ahead;
  return facts;
}

namespace {

// Chooses the folder of copies on the nodes, and adds their bytes if it is in memory. Collective.
void PlaceCopies(const Request& request, const Ranks& ranks, const Files& files,
                 train::TokenFacts& facts) {
  if (facts.staged == 0) return;
  const comm::Communicator &world = ranks.World(), &node = ranks.Node();
  files.staging->Choose(world, node, data::StagingPlace::Candidates(request.data.staging_path),
                        facts.staged);
  if (!files.staging->InMemory()) return;
  facts.bytes += world.Sum(world.IsRoot() ? facts.staged / node.Size() : 0);
}

// Gives all ranks the facts of rank 0. Numbers are summed: those of other ranks are 0. Collective.
void ShareFacts(const comm::Communicator& world, train::TokenFacts& facts) {
  for (std::int64_t* number :
       {&facts.vocabulary, &facts.train, &facts.bytes, &facts.read_ahead, &facts.staged}) {
    *number = world.Sum(*number);
  }
  facts.loss_mask = world.Sum(std::int64_t{facts.loss_mask}) > 0;
  facts.source = world.Broadcast(facts.source);
  facts.undocumented = world.Broadcast(facts.undocumented);
  for (std::string& contents : facts.contents) contents = world.Broadcast(contents);
}

// If the token file is missing and the run's model was imported with a tokenizer, throws InputError
// with the command that makes the file.
void AdviseOnImported(const Request& request) {
  std::error_code error;
  const std::string& file = request.data.file;
  if (file.empty() || std::filesystem::exists(file, error) || error) return;
  std::filesystem::path run = request.line.resume;
  if (run.empty()) run = request.checkpoint.start_from;
  run = run.lexically_normal();
  // A run folder, its checkpoints/, or one of these.
  for (int level = 0; level < 3 && !run.empty(); ++level, run = run.parent_path()) {
    const std::filesystem::path part = run / hf::kRunPart;
    const auto has = [&](const char* name) { return std::filesystem::exists(part / name, error); };
    const bool bpe = has("tokenizer.json") || has("vocab.json");
    if (!bpe && !has("tokenizer.model")) continue;
    throw InputError(file + ": this token file does not exist",
                     fmt::format("job.task=tokenize tokenize.kind={} tokenize.tokenizer={} "
                                 "tokenize.train=TEXT writes it with the model's own tokenizer; "
                                 "data.file names it.",
                                 bpe ? "bpe" : "sentencepiece", part.string()));
  }
}

}  // namespace

train::TokenFacts InspectTokens(const Request& request, const Ranks& ranks, const Files& files) {
  if (request.model.Translates()) return InspectPairs(request, ranks, request.data);
  const comm::Communicator& world = ranks.World();
  DeckOptions options = request;
  std::vector<data::MixtureFile>& mixture = options.data.mixture;
  // Other tasks need only the first file, for the vocabulary and the valid and test splits.
  if (!ReadsTraining(request.job.task)) mixture.clear();
  train::TokenFacts facts;
  world.Together([&] {
    // Check the number of ranks before files. A scaling study has other numbers of ranks.
    if (request.job.task != Task::kScaling) {
      train::PlanGrid(request, request.deck, world.Size());
    }
    if (!world.IsRoot()) return;
    AdviseOnImported(request);
    facts = FactsOf(options, request.deck, ranks.Node().Size(), files.known.get());
  });
  facts.sources.resize(mixture.size());
  facts.contents.resize(std::max<std::size_t>(1, mixture.size()));
  ShareFacts(world, facts);
  for (std::size_t i = 0; i < facts.sources.size(); ++i) {
    facts.sources[i] = {world.Sum(facts.sources[i].tokens), mixture[i].proportion};
  }
  PlaceCopies(request, ranks, files, facts);
  return facts;
}

train::TokenFacts InspectPairs(const Request& request, const Ranks& ranks,
                               const data::Options& data) {
  const comm::Communicator& world = ranks.World();
  train::TokenFacts facts;
  world.Together([&] {
    DeckOptions options = request;
    options.data = data;
    // A scaling study has other numbers of ranks.
    if (options.job.task != Task::kScaling) train::PlanGrid(options, request.deck, world.Size());
    if (world.IsRoot()) facts = FactsOfPairs(options, request.deck, ranks.Node().Size());
  });
  train::PairFacts pairs = facts.pairs.value_or(train::PairFacts{.shared_vocabulary = false});
  data::PairBatchShape& typical = pairs.typical;
  for (std::int64_t* number : {&pairs.source_vocabulary, &pairs.pairs, &pairs.steps, &pairs.batch,
                               &typical.pairs, &typical.source_length, &typical.target_length,
                               &typical.source_tokens, &typical.target_tokens}) {
    *number = world.Sum(*number);
  }
  pairs.shared_vocabulary = world.Sum(std::int64_t{pairs.shared_vocabulary}) > 0;
  facts.contents.resize(1);
  ShareFacts(world, facts);
  facts.pairs = pairs;
  return facts;
}

// The training files of the recorded run.
static std::vector<RunRecord::Source> FilesOf(const RunRecord& record,
                                              const train::TokenFacts& tokens) {
  if (!record.mixture.empty()) return record.mixture;
  RunRecord::Source file;
  file.sha256 = record.source_sha256;
  file.source.tokens = record.train_tokens.value_or(0);
  // Earlier versions did not record the number: take it from the file with the same contents.
  for (std::size_t i = 0; file.source.tokens == 0 && i < tokens.contents.size(); ++i) {
    if (tokens.contents[i] != file.sha256) continue;
    file.source.tokens = tokens.sources.empty() ? tokens.train : tokens.sources[i].tokens;
  }
  if (file.source.tokens == 0) {
    file.source.tokens = tokens.sources.empty() ? tokens.train : tokens.sources.front().tokens;
  }
  return {file};
}

// For each present file, the index of the same file in `then`; -1: a new file. Files are compared
// by contents; among files with equal contents, one with the same name is preferred.
static std::vector<int> Matches(const std::vector<RunRecord::Source>& then,
                                const data::Options& options, const train::TokenFacts& now) {
  std::vector<int> places(now.contents.size(), -1);
  std::vector<bool> taken(then.size(), false);
  for (const bool by_name : {true, false}) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::string& name = now.sources.empty() ? options.file : options.mixture[i].path;
      const std::int64_t tokens = now.sources.empty() ? now.train : now.sources[i].tokens;
      for (std::size_t j = 0; j < then.size() && places[i] < 0; ++j) {
        const bool same =
            then[j].sha256 == now.contents[i] && then[j].source.tokens == tokens && !taken[j];
        if (!same || (by_name && then[j].file != name)) continue;
        places[i] = static_cast<int>(j);
        taken[j] = true;
      }
    }
  }
  return places;
}

data::Origin OriginOf(const Request& request, const Start& start, const train::TokenFacts& tokens) {
  const std::optional<RunRecord>& record = start.record;
  if (!record || start.weights_alone || !record->origin || tokens.pairs) return {};
  const bool mixed = !record->mixture.empty() || !tokens.sources.empty();
  if (mixed && request.job.task != Task::kTrain) return {};
  const data::Sampler::Options now{.tokens = tokens.train,
                                   .length = request.data.sequence_length,
                                   .stride = request.data.stride,
                                   .batch = request.data.batch,
                                   .seed = request.machine.seed,
                                   .shuffle = true,
                                   .origin = {},
                                   .sources = tokens.sources};
  data::Sampler::Options was = now;
  was.length = record->length.value_or(now.length);
  was.stride = record->stride.value_or(now.stride);
  was.batch = record->batch.value_or(now.batch);
  if (!mixed) return data::MoveOrigin(*record->origin, was, now);
  const std::vector<RunRecord::Source> then = FilesOf(*record, tokens);
  was.sources.clear();
  was.tokens = then.front().source.tokens;
  if (!record->mixture.empty()) {
    for (const RunRecord::Source& file : then) was.sources.push_back(file.source);
  }
  return data::MoveOrigin(*record->origin, was, now, Matches(then, request.data, tokens));
}

static data::TokenFile Open(const Ranks& ranks, const Files& files, const std::string& path,
                            data::Keeping keeping) {
  keeping.folder = files.staging->Folder();
  keeping.known = files.known.get();
  data::TokenFile file(ranks.World(), ranks.Node(), path, keeping, [&] { StopIfAsked(ranks); });
  files.staging->Add(file.Staged());
  return file;
}

data::TokenFile OpenTokens(const Request& request, const Ranks& ranks, const Files& files,
                           const comm::ProcessGrid& grid) {
  return Open(ranks, files, request.data.file, KeepingOf(request, true, grid.Replica().IsRoot()));
}

std::vector<data::TokenFile> OpenCorpus(const Request& request, const Ranks& ranks,
                                        const Files& files, const comm::ProcessGrid& grid) {
  std::vector<data::TokenFile> corpus;
  if (request.data.mixture.empty()) corpus.push_back(OpenTokens(request, ranks, files, grid));
  for (const data::MixtureFile& file : request.data.mixture) {
    corpus.push_back(
        Open(ranks, files, file.path, KeepingOf(request, corpus.empty(), grid.Replica().IsRoot())));
  }
  return corpus;
}

std::string StagingLine(const Files& files) {
  const data::StagedCopies& staged = files.staging->Total();
  if (staged.files == 0) return {};
  return fmt::format(
      "staged  {} of {}, read once, to {} of {} in {:.2f} s: {}/s{}", report::AsBytes(staged.bytes),
      report::Counted(staged.files, "file"), files.staging->Folder(),
      report::Counted(staged.nodes, "node"), staged.seconds,
      report::AsBytes(std::llround(static_cast<double>(staged.bytes) / staged.seconds)),
      files.staging->InMemory() ? ", in memory" : "");
}

std::vector<ValidationSet> OpenValidation(const Request& request, const Ranks& ranks,
                                          const Files& files, const comm::ProcessGrid& grid) {
  std::vector<ValidationSet> sets;
  for (const data::ValidationFile& set : request.data.validation) {
    sets.push_back(
        {set.name, Open(ranks, files, set.path, KeepingOfSet(request, grid.Replica().IsRoot()))});
  }
  return sets;
}

std::vector<ValidSplit> ValidSplits(const data::TokenFile& tokens,
                                    std::span<const ValidationSet> sets) {
  if (sets.empty()) return {{"", &tokens}};
  std::vector<ValidSplit> splits;
  for (const ValidationSet& set : sets) splits.push_back({set.name, &set.tokens});
  return splits;
}

void RequireTargets(const Request& request, const comm::Communicator& world,
                    const data::TokenFile& tokens, std::span<const ValidSplit> validation) {
  if (!Evaluates(request)) return;
  const auto require = [&](const data::TokenFile& file, data::Split split) {
    if (data::HasTarget(file, split, request.data.document_mask)) return;
    throw InputError(fmt::format("{}: no target of /{}/tokens counts: it has no loss", file.Path(),
                                 data::NameOf(split)),
                     "Its mask, and with data.document_mask its documents, leave none. Without "
                     "validation (monitor.validate_every_steps = 0) it is not needed.");
  };
  world.Together([&] {
    if (!world.IsRoot()) return;
    for (const ValidSplit& valid : validation) require(*valid.tokens, data::Split::kValid);
    require(tokens, data::Split::kTest);
  });
}

data::PairFile OpenPairs(const Request& request, const Ranks& ranks) {
  const bool evaluates = Evaluates(request);
  const data::Keeping keeping(request.data.staging,
                              {ReadsTraining(request.job.task), evaluates, evaluates}, 1);
  return {ranks.World(), ranks.Node(), request.data.file, keeping, [&] { StopIfAsked(ranks); }};
}

nlohmann::json ImportedJson(const std::string& folder) {
  // The sets of files that make up a tokenizer, as job.task = tokenize reads them.
  const std::vector<std::vector<const char*>> sets = {
      {"tokenizer.json"}, {"merges.txt", "vocab.json"}, {"tokenizer.model"}};
  nlohmann::json hashes = nlohmann::json::array();
  for (const std::vector<const char*>& names : sets) {
    const auto there = [&](const char* name) {
      std::error_code ignored;
      return std::filesystem::is_regular_file(folder + "/" + name, ignored);
    };
    if (!std::all_of(names.begin(), names.end(), there)) continue;
    std::map<std::string, std::string> files;
    for (const char* name : names) {
      files[name] = ReadText(folder + "/" + name, std::int64_t{256} << 20);
    }
    hashes.push_back(data::TokenizerSha256Of(files));
  }
  return {{"tokenizers", std::move(hashes)}};
}

}  // namespace trireme::app
