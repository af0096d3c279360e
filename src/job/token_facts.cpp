// Job: what it knows of its token files, where in them it goes on, and the opened files.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "trireme/job/job.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::job {

namespace {

// Parts that a task keeps of a token file: only training reads the train split, and of a mixture's
// other files nothing else.
data::Keeping KeepingOf(Task task, const data::Options& options, bool first) {
  const bool trains = task == Task::kTrain;
  const bool evaluates = first && (trains || task == Task::kEvaluate);
  const bool validates = evaluates && options.validation.empty();
  return {options.staging, {trains, validates, evaluates}, options.read_ahead};
}

data::Keeping KeepingOfSet(const data::Options& options) {
  return {options.staging, {false, true, false}, options.read_ahead};
}

// Bytes of a rank's share of what is kept.
std::int64_t ShareOf(const data::TokenCounts& counts, const data::Keeping& keeping, int shared_by) {
  const std::int64_t bytes = data::BytesOf(counts, keeping);
  if (keeping.staging != data::Staging::kSharedMemory) return bytes;
  return shared_by == 0 ? 0 : bytes / shared_by;
}

std::int64_t AheadOf(const data::Options& options) {
  return options.staging == data::Staging::kStream ? options.read_ahead : 0;
}

std::string DescribeVocabulary(const data::TokenCounts& counts) {
  return fmt::format(
      "{} words by the tokenizer {}{}, sha256 {:.12}", monitor::WithThousands(counts.vocabulary),
      counts.tokenizer,
      counts.tokenizer_sha256.empty() ? "" : fmt::format(" ({:.12})", counts.tokenizer_sha256),
      counts.vocabulary_sha256);
}

// Ids of one file must mean the same in all others.
void RequireOneVocabulary(const char* key, const std::string& path, const data::TokenCounts& counts,
                          const std::string& first_path, const data::TokenCounts& first,
                          const input::Deck& deck) {
  if (counts.vocabulary_sha256 == first.vocabulary_sha256 && counts.tokenizer == first.tokenizer &&
      counts.tokenizer_sha256 == first.tokenizer_sha256) {
    return;
  }
  throw deck.Complain(key,
                      fmt::format("{} has another vocabulary than {}: {}; {}", path, first_path,
                                  DescribeVocabulary(counts), DescribeVocabulary(first)),
                      "Tokenise all texts with one tokenizer and one vocabulary.");
}

// Whether a task validates on the deck's sets.
bool Validates(Task task) { return task == Task::kTrain || task == Task::kEvaluate; }

// Adds the sets of data.validation; first: of the deck's token file.
void AddValidation(Task task, const data::Options& options, const input::Deck& deck, int shared_by,
                   const data::TokenCounts& first, plan::TokenFacts& facts) {
  if (!Validates(task)) return;
  for (const data::ValidationFile& set : options.validation) {
    std::error_code ignored;
    if (std::filesystem::status(set.path, ignored).type() ==
        std::filesystem::file_type::not_found) {
      throw deck.Complain("data.validation", fmt::format("{}: no such file", set.path),
                          "Check the path, or write the file with job.task = tokenize.");
    }
    const data::TokenCounts counts = data::CountTokens(set.path);
    RequireOneVocabulary("data.validation", set.path, counts, options.file, first, deck);
    facts.bytes += ShareOf(counts, KeepingOfSet(options), shared_by);
  }
}

plan::TokenFacts FactsOfMixture(Task task, const data::Options& options, const input::Deck& deck,
                                int shared_by) {
  data::CheckMixtureFiles(options.mixture, deck);
  plan::TokenFacts facts;
  facts.documents = true;
  data::TokenCounts first;
  for (const data::MixtureFile& file : options.mixture) {
    const data::TokenCounts counts = data::CountTokens(file.path);
    if (facts.sources.empty()) first = counts;
    RequireOneVocabulary("data.mixture", file.path, counts, options.file, first, deck);
    facts.train += counts.tokens.front();
    facts.bytes += ShareOf(counts, KeepingOf(task, options, facts.sources.empty()), shared_by);
    facts.source += facts.source.empty() ? "" : " + ";
    facts.source += std::filesystem::path(file.path).filename().string();
    facts.sources.push_back({counts.tokens.front(), file.proportion});
    facts.contents.push_back(counts.source_sha256);
    facts.documents = facts.documents && counts.documents.front();
    facts.loss_mask = facts.loss_mask || counts.masks.front();
  }
  AddValidation(task, options, deck, shared_by, first, facts);
  facts.vocabulary = first.vocabulary;
  facts.read_ahead = AheadOf(options);
  return facts;
}

}  // namespace

plan::TokenFacts FactsOf(Task task, const data::Options& options, const input::Deck& deck,
                         int shared_by) {
  if (!options.mixture.empty()) return FactsOfMixture(task, options, deck, shared_by);
  const data::TokenCounts counts = data::CountTokens(options.file);
  plan::TokenFacts facts{.vocabulary = counts.vocabulary,
                         .train = counts.tokens.front(),
                         .bytes = ShareOf(counts, KeepingOf(task, options, true), shared_by),
                         .source = std::filesystem::path(options.file).filename().string(),
                         .sources = {},
                         .contents = {counts.source_sha256},
                         .documents = counts.documents.front(),
                         .loss_mask = counts.masks.front(),
                         .read_ahead = AheadOf(options)};
  AddValidation(task, options, deck, shared_by, counts, facts);
  return facts;
}

plan::TokenFacts InspectTokens(const Job& job) {
  const comm::Communicator& world = job.World();
  data::Options options = job.options.data;
  // Other tasks take no training windows: they need the vocabulary, and the valid and test splits.
  if (job.options.job.task != Task::kTrain) options.mixture.clear();
  plan::TokenFacts facts;
  world.Together([&] {
    // A wrong number of ranks is said before a missing file.
    plan::PlanGrid(job.options, job.deck, world.Size());
    if (!world.IsRoot()) return;
    facts = FactsOf(job.options.job.task, options, job.deck, job.runtime->Node().Size());
  });
  facts.sources.resize(options.mixture.size());
  facts.contents.resize(std::max<std::size_t>(1, options.mixture.size()));
  // Sums of one rank's numbers and of zeros.
  for (std::int64_t* number : {&facts.vocabulary, &facts.train, &facts.bytes, &facts.read_ahead}) {
    *number = world.Sum(*number);
  }
  for (std::size_t i = 0; i < facts.sources.size(); ++i) {
    facts.sources[i] = {world.Sum(facts.sources[i].tokens), options.mixture[i].proportion};
  }
  for (bool* fact : {&facts.documents, &facts.loss_mask}) {
    *fact = world.Sum(std::int64_t{*fact}) > 0;
  }
  facts.source = world.Broadcast(facts.source);
  for (std::string& contents : facts.contents) contents = world.Broadcast(contents);
  return facts;
}

namespace {

// The files of the recorded training.
std::vector<RunRecord::Source> FilesOf(const RunRecord& record, const plan::TokenFacts& tokens) {
  if (!record.mixture.empty()) return record.mixture;
  RunRecord::Source file;
  file.sha256 = record.source_sha256;
  file.source.tokens = record.train_tokens.value_or(0);
  // Earlier versions did not write the number: contents tell it if the file is still there.
  for (std::size_t i = 0; file.source.tokens == 0 && i < tokens.contents.size(); ++i) {
    if (tokens.contents[i] != file.sha256) continue;
    file.source.tokens = tokens.sources.empty() ? tokens.train : tokens.sources[i].tokens;
  }
  if (file.source.tokens == 0) {
    file.source.tokens = tokens.sources.empty() ? tokens.train : tokens.sources.front().tokens;
  }
  return {file};
}

// For each file of now its place among those of the record, by contents and, of several alike, by
// name; -1: a new one.
std::vector<int> Matches(const std::vector<RunRecord::Source>& then, const data::Options& options,
                         const plan::TokenFacts& now) {
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

}  // namespace

data::Origin OriginOf(const Job& job, const plan::TokenFacts& tokens) {
  const std::optional<RunRecord>& record = job.start.record;
  if (!record || job.start.weights_alone || !record->origin) return {};
  const bool mixed = !record->mixture.empty() || !tokens.sources.empty();
  if (mixed && job.options.job.task != Task::kTrain) return {};
  const data::Sampler::Options now{.tokens = tokens.train,
                                   .length = job.options.data.sequence_length,
                                   .stride = job.options.data.stride,
                                   .batch = job.options.data.batch,
                                   .seed = job.options.machine.seed,
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
  return data::MoveOrigin(*record->origin, was, now, Matches(then, job.options.data, tokens));
}

namespace {

data::TokenFile Open(const Job& job, const std::string& path, const data::Keeping& keeping) {
  return data::TokenFile(job.World(), job.runtime->Node(), path, keeping,
                         [&job] { StopIfAsked(job); });
}

}  // namespace

data::TokenFile OpenTokens(const Job& job) {
  const data::Options& options = job.options.data;
  return Open(job, options.file, KeepingOf(job.options.job.task, options, true));
}

std::vector<data::TokenFile> OpenCorpus(const Job& job) {
  std::vector<data::TokenFile> files;
  for (const data::MixtureFile& file : job.options.data.mixture) {
    files.push_back(
        Open(job, file.path, KeepingOf(job.options.job.task, job.options.data, files.empty())));
  }
  if (files.empty()) files.push_back(OpenTokens(job));
  return files;
}

std::vector<ValidationSet> OpenValidation(const Job& job) {
  std::vector<ValidationSet> sets;
  for (const data::ValidationFile& set : job.options.data.validation) {
    sets.push_back({set.name, Open(job, set.path, KeepingOfSet(job.options.data))});
  }
  return sets;
}

}  // namespace trireme::job
