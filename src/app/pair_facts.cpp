// Job: what it knows of its file of pairs, and the opened file.
#include "pair_facts.hpp"

#include <algorithm>
#include <filesystem>

#include "trireme/base/error.hpp"

namespace trireme::app {

namespace {

// Tasks and keys that pairs have no part in yet.
void Check(const DeckOptions& options, const deck::Deck& deck) {
  const Task task = options.job.task;
  if (task != Task::kTrain && task != Task::kEvaluate && task != Task::kGenerate &&
      task != Task::kVerify && task != Task::kPlan && task != Task::kScaling) {
    throw deck.Complain("job.task", "models that translate have no such task",
                        "Use job.task = train, evaluate, generate, verify, plan or scaling, or "
                        "model.kind = decoder.");
  }
  if (!options.data.mixture.empty()) {
    throw deck.Complain("data.mixture", "files of pairs are not mixed",
                        "Name one file of pairs with data.file.");
  }
  if (!options.data.validation.empty()) {
    throw deck.Complain("data.validation", "pairs are validated on their own valid split",
                        "Leave this key out.");
  }
  if (data::IsStream(options.data.staging)) {
    throw deck.Complain("data.staging", "pairs are not read ahead",
                        "Use data.staging = shared_memory.");
  }
  if (options.training.on_spike == train::OnSpike::kRollback) {
    throw deck.Complain("run.on_spike", "batches of pairs have one order, and none is skipped",
                        "Use run.on_spike = report.");
  }
  if (options.data.stride != options.data.sequence_length) {
    throw deck.Complain("data.stride", "pairs are no windows", "Leave this key out.");
  }
}

// Tasks whose plan depends on the batches of the training split.
bool NeedsBatches(Task task) {
  return ReadsTraining(task) || task == Task::kVerify || task == Task::kPlan;
}

// Reads the lengths of the training split's pairs.
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

// Bytes of a rank's share of the texts.
std::int64_t BytesOf(const data::Options& options, const data::PairCounts& counts, int shared_by) {
  std::int64_t tokens = 0;
  for (const std::int64_t count : counts.source_tokens) tokens += count;
  for (const std::int64_t count : counts.target_tokens) tokens += count;
  const std::int64_t bytes = tokens * static_cast<std::int64_t>(sizeof(std::int32_t));
  if (options.staging != data::Staging::kSharedMemory) return bytes;
  return shared_by == 0 ? 0 : bytes / shared_by;
}

}  // namespace

train::TokenFacts FactsOfPairs(const DeckOptions& options, const deck::Deck& deck, int shared_by) {
  Check(options, deck);
  const data::PairCounts counts = data::CountPairs(options.data.file);
  train::TokenFacts facts;
  facts.vocabulary = counts.target_vocabulary;
  facts.train = counts.target_tokens.front();
  facts.bytes = BytesOf(options.data, counts, shared_by);
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

train::TokenFacts InspectPairs(const Job& job, const data::Options& data) {
  const comm::Communicator& world = job.World();
  train::TokenFacts facts;
  world.Together([&] {
    DeckOptions options = job.options;
    options.data = data;
    // A scaling study has other numbers of ranks.
    if (options.job.task != Task::kScaling) train::PlanGrid(options, job.deck, world.Size());
    if (world.IsRoot()) facts = FactsOfPairs(options, job.deck, job.runtime->Node().Size());
  });
  train::PairFacts pairs = facts.pairs.value_or(train::PairFacts{.shared_vocabulary = false});
  data::PairBatchShape& typical = pairs.typical;
  // Sums of one rank's numbers and of zeros.
  for (std::int64_t* number :
       {&facts.vocabulary, &facts.train, &facts.bytes, &pairs.source_vocabulary, &pairs.pairs,
        &pairs.steps, &pairs.batch, &typical.pairs, &typical.source_length, &typical.target_length,
        &typical.source_tokens, &typical.target_tokens}) {
    *number = world.Sum(*number);
  }
  pairs.shared_vocabulary = world.Sum(std::int64_t{pairs.shared_vocabulary}) > 0;
  facts.source = world.Broadcast(facts.source);
  facts.contents.resize(1);
  facts.pairs = pairs;
  return facts;
}

data::PairFile OpenPairs(const Job& job) {
  const Task task = job.options.job.task;
  const bool trains = ReadsTraining(task);
  const bool evaluates =
      task == Task::kTrain ? job.options.monitor.validate_every_steps > 0 : task == Task::kEvaluate;
  const data::Keeping keeping(job.options.data.staging, {trains, evaluates, evaluates}, 1);
  return {job.World(), job.runtime->Node(), job.options.data.file, keeping,
          [&job] { StopIfAsked(job); }};
}

}  // namespace trireme::app
