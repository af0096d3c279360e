// Plans: what is decided and refused, canonical decks, lengths, and the shipped decks of Llama 3.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "plan_of.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/options.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;

// Plans of ranks that are not there: what is decided, what is refused, which kinds of ranks there
// are, and the operations of a step.

constexpr train::TokenFacts kPlanTokens{.vocabulary = 1000, .train = 100'000, .source = "made up"};

std::string PlanTextOf(const std::string& more) {
  return "[data]\nbatch=64\nsequence_length=64\n[model]\ndim=64\nheads=8\nffn=201\nlayers=12\n"
         "max_positions=64\n[schedule]\nsteps=20\n" +
         more;
}

train::Plan Made(const std::string& more, int ranks, const std::vector<std::string>& keys = {}) {
  return PlanOf(PlanTextOf(more), kPlanTokens, ranks, Dtype::kFloat32, keys);
}

std::string Refusal(const std::string& more, int ranks) {
  try {
    Made(more, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown: " << more;
  return {};
}

TEST(Plan, DecidesTheLayout) {
  const train::Plan plan = Made("[grid]\ntensor=2\npipeline=3\nsharding=optimizer\n", 24);
  EXPECT_EQ(plan.grid, (comm::GridShape{.pipeline = 3, .data = 4, .context = 1, .tensor = 2}));
  EXPECT_EQ(plan.training.Batch(), 64);
  EXPECT_EQ(plan.training.model.pipeline.stages, 3);
  // 16 windows for each data rank, in micro-batches of which each stage has 4.
  EXPECT_EQ(plan.training.model.micro_batch, 1);
  EXPECT_EQ(plan.training.model.pipeline.micro_batches, 16);
  EXPECT_THAT(train::Describe(plan),
              HasSubstr("pipeline 3 x data 4 x context 1 x tensor 2; moments "
                        "sharded over 4 ranks; 1f1b, 16 micro-batches"));
}

TEST(Plan, OdditiesAreSaid) {
  using testing::ElementsAre;
  const auto odd = [](const std::vector<std::string>& keys, int ranks) {
    return train::Oddities(Made("", ranks, keys));
  };
  EXPECT_THAT(odd({}, 64), testing::IsEmpty());
  EXPECT_THAT(odd({}, 80),
              ElementsAre("80 data ranks share data.batch = 64: 16 of them have nothing to do"));
  EXPECT_THAT(odd({"schedule.warmup_steps=21"}, 1),
              ElementsAre("schedule.warmup_steps = 21 exceeds the run's 20 steps: the rate ends at "
                          "0.000952 and never reaches optimizer.learning_rate = 0.001"));
  EXPECT_THAT(odd({"schedule.warmup_steps=20"}, 1), testing::IsEmpty());
  EXPECT_THAT(odd({"schedule.batch_ramp=20"}, 1),
              ElementsAre("schedule.batch_ramp = 20 takes the run's 20 steps: none has the whole "
                          "data.batch = 64"));
  EXPECT_THAT(odd({"schedule.batch_ramp=19"}, 1), testing::IsEmpty());
  EXPECT_THAT(odd({"optimizer.learning_rate=0"}, 1),
              ElementsAre("optimizer.learning_rate = 0: nothing is learned"));
  EXPECT_THAT(odd({"data.stride=128"}, 1),
              ElementsAre("data.stride = 128 exceeds data.sequence_length = 64: 50% of the tokens "
                          "are never trained on"));
  EXPECT_THAT(odd({"data.sequence_length=200000", "model.max_positions=200000"}, 1),
              ElementsAre("data.sequence_length = 200000 exceeds the 100000 tokens of made up: its "
                          "only window is filled up"));
  EXPECT_THAT(
      odd({"model.position=rope", "model.max_positions=32"}, 1),
      ElementsAre("data.sequence_length = 64 exceeds model.max_positions = 32, for which the "
                  "rotary positions are made"));
}

// The plan is that of whole batches; a run of an epoch takes more steps.
TEST(Plan, BatchesGrow) {
  const std::string ramp = "batch_ramp=10\nbatch_start=";
  const train::Plan plan = Made(ramp + "4\n[grid]\ndata=4\n", 4), whole = Made("", 4);
  EXPECT_EQ(plan.training.options.samples.ramp, (data::BatchRamp{10, 4}));
  EXPECT_EQ(plan.training.Batch(), 64);
  EXPECT_EQ(train::PlanMemory(plan, 0).Total(), train::PlanMemory(whole, 0).Total());
  // 1,563 windows make 25 whole batches; the ten that grow, of 4 to 58, have 310 windows.
  const std::vector<std::string> epoch = {"schedule.steps=0"};
  EXPECT_EQ(Made("", 4, epoch).training.options.schedule.steps, 25);
  EXPECT_EQ(Made(ramp + "4\n", 4, epoch).training.options.schedule.steps, 30);
  EXPECT_THAT(Refusal(ramp + "65\n", 4),
              HasSubstr("batch_start = 65: the batch grows from here to data.batch = 64"));
  EXPECT_THAT(Refusal("batch_start=2\n", 4),
              HasSubstr("schedule.batch_start = 2: belongs to schedule.batch_ramp"));
  train::TokenFacts pairs = kPlanTokens;
  pairs.pairs = train::PairFacts{.source_vocabulary = 1000, .pairs = 500, .steps = 8, .batch = 64};
  try {
    PlanOf(PlanTextOf("batch_ramp=10\n[model]\nkind=encoder_decoder\n"), pairs, 1, Dtype::kFloat32);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("batches of pairs do not grow"));
  }
}

// Bytes of activations, of micro-batches of one window: on a GPU in bf16, or on a CPU in fp32.
std::int64_t Activations(bool on_gpu, std::vector<std::string> keys) {
  const device::Gpu gpu(device::GpuContext{.name = "a card", .major = 9, .multiprocessors = 132});
  keys.emplace_back("data.micro_batch=1");
  const deck::Deck deck = ParsedDeck(PlanTextOf("[model]\nposition=rope\n"), keys);
  const app::DeckOptions options = app::ReadAll(deck);
  train::MachineFacts machine;
  machine.dtype = on_gpu ? Dtype::kBfloat16 : Dtype::kFloat32;
  machine.stream.gpu = on_gpu ? &gpu.Context() : nullptr;
  const train::Plan plan = train::MakePlan({options, deck, 1, kPlanTokens, machine});
  return train::PlanMemory(plan, 0).activations;
}

// Norms of heads keep queries and keys as they were, and two numbers of fp32 a head and token: on a
// GPU in bf16 as on a CPU in fp32.
TEST(Plan, NormsOfHeadsKeepTheirInputs) {
  constexpr std::int64_t kLayers = 12, kRows = 64, kAllHeads = 16, kWidth = 8;
  for (const bool on_gpu : {false, true}) {
    const std::int64_t kept = kRows * kAllHeads * (kWidth * (on_gpu ? 2 : 4) + 2 * 4);
    EXPECT_EQ(
        Activations(on_gpu, {"model.qk_norm=yes"}) - Activations(on_gpu, {"model.qk_norm=no"}),
        kLayers * kept)
        << on_gpu;
  }
}

// Dropout of the two branches of a block keeps a bit of each element on a GPU, as long as what else
// the input gradient needs: with full recomputation of one block at a time. CPUs keep none.
TEST(Plan, DropoutKeepsABitPerElementOnAGpu) {
  constexpr std::int64_t kLayers = 12, kRows = 64, kDim = 64, kOfABlock = 2 * kRows * kDim / 8;
  const auto more = [](bool on_gpu, const std::string& recompute) {
    return Activations(on_gpu, {recompute, "model.dropout=0.1"}) -
           Activations(on_gpu, {recompute, "model.dropout=0"});
  };
  for (const char* const recompute : {"model.recompute=none", "model.recompute=selective"}) {
    EXPECT_EQ(more(true, recompute), kLayers * kOfABlock) << recompute;
    EXPECT_EQ(more(false, recompute), 0) << recompute;
  }
  EXPECT_EQ(more(true, "model.recompute=full"), kOfABlock);
}

// 99,999 targets make 1,563 windows of 64: 25 steps of 64 windows per epoch, or 49 of 32.
TEST(Plan, EpochsAreCountedFromTheOrigin) {
  const deck::Deck deck =
      ParsedDeck(PlanTextOf(""), {"schedule.epochs=3", "data.batch=32", "data.micro_batch=1"});
  const app::DeckOptions options = app::ReadAll(deck);
  train::Request request{options, deck, 2, kPlanTokens, {}, {}};
  EXPECT_EQ(train::MakePlan(request).training.options.schedule.steps, 3 * 49);
  // After 30 steps of 64 windows, 20 steps of an epoch are left at half the batch, doubled.
  request.origin = {.step = 30, .sample = 1563 + 5 * 64, .targets = 99'999 + 5 * 64 * 64};
  const train::Plan plan = train::MakePlan(request);
  EXPECT_EQ(plan.training.options.schedule.steps, 30 + 39 + 49);
  EXPECT_EQ(plan.training.options.samples.origin.sample, request.origin.sample);
  EXPECT_EQ(plan.StepsPerEpoch(), 49);
  const data::Sampler sampler(plan.training.options.samples);
  EXPECT_EQ(sampler.NextSample(plan.training.options.schedule.steps), 3 * 1563);
}

// Windows that are read ahead are memory of the first rank of a replica; those in use, of all.
TEST(Plan, CountsTheWindowsOfAStream) {
  const auto bytes = [](std::int64_t ahead, const char* keys, int rank) {
    train::TokenFacts tokens = kPlanTokens;
    tokens.read_ahead = ahead;
    tokens.loss_mask = true;
    return train::PlanMemory(PlanOf(PlanTextOf(keys), tokens, 4, Dtype::kFloat32), rank).tokens;
  };
  // 32 windows of a data rank's share of a step, and a micro-batch of a validation.
  constexpr std::int64_t kWindows = 32 + 4, kTokensOfAWindow = 65;
  constexpr const char* kKeys = "[grid]\ndata=2\ntensor=2\n[data]\nmicro_batch=4\n";
  EXPECT_EQ(bytes(0, kKeys, 0), 0);
  const std::int64_t few = bytes(2, kKeys, 0), many = bytes(102, kKeys, 0);
  EXPECT_GT(many - few, 100 * kWindows * kTokensOfAWindow * (4 + 1));
  EXPECT_LT(many - few, 100 * kWindows * (kTokensOfAWindow * (4 + 1) + 200));
  EXPECT_EQ(bytes(2, kKeys, 1), bytes(102, kKeys, 1));
  EXPECT_GT(bytes(2, kKeys, 1), kWindows * kTokensOfAWindow * (4 + 1 + 2 * 4));
  const std::string masked = std::string(kKeys) + "document_mask=yes\n";
  EXPECT_GT(bytes(102, masked.c_str(), 0) - bytes(2, masked.c_str(), 0),
            100 * kWindows * kTokensOfAWindow * (4 + 8 + 1));
}

TEST(Plan, RefusesWithTheLineOfTheDeck) {
  EXPECT_THAT(Refusal("[grid]\ntensor=3\n", 6), HasSubstr("deck:13: grid.tensor = 3"));
  EXPECT_THAT(Refusal("[grid]\npipeline=5\n", 8), HasSubstr("deck:13: grid.pipeline = 5"));
  EXPECT_THAT(Refusal("[grid]\npipeline=16\n", 16), HasSubstr("deck:13: grid.pipeline = 16"));
  EXPECT_THAT(Refusal("[run]\ncanonical=2x1\n[grid]\ndata=4\n", 4),
              HasSubstr("deck:15: grid.data"));
  EXPECT_THAT(Refusal("[run]\ncanonical=2x1\ncanonical_leaf=3\n[data]\nmicro_batch=4\n", 2),
              HasSubstr("data.micro_batch = 4"));
  for (const char* key : {"word_dropout", "layer_dropout", "weight_dropout"}) {
    for (const char* value : {"-0.1", "1"}) {
      EXPECT_THAT(Refusal(fmt::format("[model]\n{} = {}\n", key, value), 1),
                  HasSubstr(fmt::format("deck:13: model.{} = {}", key, value)));
    }
  }
  EXPECT_THAT(Refusal("[run]\nprecision=fp8\n[model]\nweight_dropout=0.1\n", 1),
              HasSubstr("deck:15: model.weight_dropout = 0.1"));
  const std::string sampled = "[model]\nsampled_softmax=9\n";
  const std::string clash = "model.sampled_softmax = 9: does not go together with ";
  EXPECT_THAT(Refusal(sampled + "[optimizer]\nlabel_smoothing=0.1\n", 1),
              HasSubstr(clash + "optimizer.label_smoothing"));
  EXPECT_THAT(Refusal(sampled + "[run]\ncanonical=1x1\n", 1), HasSubstr(clash + "run.canonical"));
  try {
    Activations(true, {"model.sampled_softmax=9"});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.sampled_softmax = 9: works on CPUs alone"));
  }
}

// Stages, uneven slices, uneven blocks of sequences and places of shard groups all differ.
TEST(Plan, KindsCoverAllRanks) {
  for (const char* layout : {"", "[grid]\ntensor=4\npipeline=3\nsequence_parallel=yes\n",
                             "[grid]\ncontext=5\ntensor=2\nsharding=parameters\n",
                             "[grid]\npipeline=4\nsharding=gradients\nshard_group=5\n",
                             "[grid]\ntensor=4\nsharding=optimizer\n",
                             "[grid]\nsharding=parameters\n[optimizer]\nkind=muon\n"}) {
    const train::Plan plan = Made(layout, 60, {"data.sequence_length=61"});
    std::map<std::int64_t, std::int64_t> wanted, got;  // ranks by bytes
    for (int rank = 0; rank < 60; ++rank) ++wanted[train::PlanMemory(plan, rank).Total()];
    const std::vector<train::RankKind> kinds = train::PlanKinds(plan);
    for (const train::RankKind& kind : kinds) got[kind.memory.Total()] += kind.ranks;
    EXPECT_EQ(got, wanted) << layout;
    EXPECT_EQ(kinds.front().memory.Total(), wanted.rbegin()->first) << layout;
    EXPECT_LT(kinds.size(), 60U) << layout;
  }
}

// All products of a step, whoever computes them: 6 per matrix parameter and token, and attention.
TEST(Plan, OperationsAreTheModels) {
  for (const char* layout :
       {"", "[grid]\ntensor=2\n", "[grid]\npipeline=3\n[data]\nmicro_batch=2\n",
        "[grid]\npipeline=2\n[pipeline]\nschedule=zero_bubble\n"}) {
    const train::Plan plan = Made(layout, 6);
    double sum = 0;
    for (int rank = 0; rank < 6; ++rank) {
      for (const auto& chunk : train::PlanRank(plan, rank).operations) {
        for (const double operations : chunk) sum += operations;
      }
    }
    const double wanted = model::FlopsPerToken(plan.training.model.options, 64) * 64 * 64;
    EXPECT_NEAR(sum / wanted, 1, 1e-12) << layout;
  }
}

TEST(Plan, RecomputationRepeatsTheForwardPass) {
  const auto forward_and_backward = [](const char* model) {
    double sum = 0;
    for (const auto& chunk : train::PlanRank(Made(model, 1), 0).operations) {
      for (const double operations : chunk) sum += operations;
    }
    return sum;
  };
  EXPECT_GT(forward_and_backward("[model]\nrecompute=full\n"), 1.1 * forward_and_backward(""));
}

// 7 windows: the first data rank has 1, the last one 2, and of 9 data ranks the first has none.
TEST(Plan, TheBusiestRankHasTheLargestShareOfTheBatch) {
  const std::vector<std::string> keys = {"data.batch=7", "data.micro_batch=1"};
  EXPECT_THAT(train::Describe(Made("", 4, keys)), HasSubstr("busiest rank; 50% of that"));
  EXPECT_THAT(train::Describe(Made("", 9, keys)), HasSubstr("busiest rank; 0% of that"));
  EXPECT_THAT(train::Describe(Made("[run]\ncanonical=4x1\ncanonical_leaf=1\n", 4, keys)),
              HasSubstr("busiest rank; 50% of that"));
}

TEST(Plan, ManyRanks) {
  constexpr int kRanks = 100'000;
  const train::Plan plan =
      Made("[grid]\ntensor=4\npipeline=5\nsharding=parameters\n", kRanks, {"data.batch=40000"});
  const std::vector<train::RankKind> kinds = train::PlanKinds(plan);
  std::int64_t ranks = 0;
  for (const train::RankKind& kind : kinds) ranks += kind.ranks;
  EXPECT_EQ(ranks, kRanks);
  EXPECT_THAT(train::Describe(plan), HasSubstr("sharded over 5000 ranks"));
}

// Transfers longer than MPI can count, 2^31 - 1 elements, are refused at the plan with the key that
// they follow from; the longest that can be counted are not.

// A sequence of activations has 2^28 elements: 8 of them are too many, 7 are not.
constexpr train::TokenFacts kTokens{.vocabulary = 1000, .train = 100'000'000, .source = "made up"};
const std::string kDeck =
    "[data]\nbatch=64\nsequence_length=65536\n[model]\ndim=4096\nheads=32\nffn=4096\nlayers=4\n"
    "max_positions=65536\nposition=rope\n[schedule]\nsteps=20\n";

// Message of the refusal of rank 0's transfers; empty: there was none.
std::string TransferRefusal(const std::vector<std::string>& keys, int ranks,
                            const train::TokenFacts& tokens = kTokens) {
  const train::Plan plan = PlanOf(kDeck, tokens, ranks, Dtype::kFloat32, keys);
  try {
    train::CheckTransfers(plan, 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput) << error.what();
    return error.what();
  }
  return {};
}

std::vector<std::string> With(std::vector<std::string> keys, int micro_batch) {
  keys.push_back(fmt::format("data.micro_batch={}", micro_batch));
  return keys;
}

struct Case {
  std::vector<std::string> keys;
  int ranks;
  std::string key;
};
const std::vector<Case> kCases = {
    {{"grid.pipeline=2"}, 2, "grid.pipeline: one receive of the pipeline group"},
    {{"grid.pipeline=2", "pipeline.schedule=gpipe"}, 4, "grid.pipeline: one "},
    {{"grid.tensor=2"}, 2, "grid.tensor: one all-reduce of the tensor group"},
    {{"grid.tensor=2", "grid.sequence_parallel=yes"}, 2, "grid.tensor: one "},
    {{"grid.context=2"}, 2, "grid.context: one send of the context group"}};

TEST(Lengths, ActivationsThatMpiCannotCountAreRefused) {
  for (const Case& each : kCases) {
    const std::string refusal = TransferRefusal(With(each.keys, 8), each.ranks);
    EXPECT_THAT(refusal, HasSubstr(each.key)) << each.keys.back();
    EXPECT_THAT(refusal, HasSubstr("2147483648 elements, and MPI counts to 2147483647"));
    EXPECT_THAT(refusal, HasSubstr("What helps: a smaller data.micro_batch"));
    EXPECT_EQ(TransferRefusal(With(each.keys, 7), each.ranks), "") << each.keys.back();
  }
}

// A table of 2^31 + 2^19 elements, whole, in halves, and not sharded.
TEST(Lengths, ShardedStateThatMpiCannotCountIsRefused) {
  train::TokenFacts tokens = kTokens;
  tokens.vocabulary = (1 << 19) + 128;
  for (const char* sharding : {"optimizer", "gradients", "parameters"}) {
    const std::string key = std::string("grid.sharding=") + sharding;
    const std::string refusal = TransferRefusal(With({key}, 1), 2, tokens);
    EXPECT_THAT(refusal, HasSubstr("grid.sharding: ")) << sharding;
    EXPECT_THAT(refusal, HasSubstr("more ranks along grid.tensor"));
    EXPECT_EQ(TransferRefusal(With({key, "grid.tensor=2"}, 1), 4, tokens), "") << sharding;
  }
  EXPECT_EQ(TransferRefusal(With({}, 1), 2, tokens), "");
}

TEST(Lengths, EvaluationsAreHeldToThemToo) {
  const auto refusal = [](int micro_batch) -> std::string {
    const deck::Deck deck = ParsedDeck(kDeck, With({"grid.pipeline=2"}, micro_batch));
    const app::DeckOptions options = app::ReadAll(deck);
    train::MachineFacts machine;
    machine.stream.threads = 1;
    const auto plan = train::MakeEvaluationPlan({options, deck, 2, kTokens, machine});
    try {
      train::CheckTransfers(plan, 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
    return {};
  };
  EXPECT_THAT(refusal(8), HasSubstr("grid.pipeline: one send of the pipeline group"));
  EXPECT_EQ(refusal(7), "");
}

// The decks input/llama3_*.in: each layout that a deck's comments state is planned for GPUs of 80
// GB in bf16, and the largest rank fits.

constexpr std::int64_t kGib = std::int64_t{1} << 30;
// Of the 79.2 GiB that an H100 with 80 GB shows: the rest is for CUDA's context, NCCL and cuDNN.
constexpr std::int64_t kUsable = 74 * kGib;

struct StatedLayout {
  int gpus = 0;
  std::vector<std::string> keys;
};

std::string TextOf(const std::string& name) {
  std::ifstream file(std::string(TRIREME_SOURCE) + "/input/" + name);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// From the comments: "#    64 GPUs: grid.tensor=4 model.recompute=full".
std::vector<StatedLayout> LayoutsIn(const std::string& text) {
  static const std::regex line("# +([0-9]+) GPUs: (.*)");
  std::vector<StatedLayout> layouts;
  std::istringstream lines(text);
  for (std::string one; std::getline(lines, one);) {
    std::smatch found;
    if (!std::regex_match(one, found, line)) continue;
    std::istringstream keys(found[2]);
    layouts.push_back({std::stoi(found[1]), {std::istream_iterator<std::string>(keys), {}}});
  }
  return layouts;
}

train::Plan PlanOnGpus(const std::string& text, const StatedLayout& layout,
                       const device::Gpu& gpu) {
  const deck::Deck deck = ParsedDeck(text, layout.keys);
  const app::DeckOptions options = app::ReadAll(deck);
  const device::Arithmetic arithmetic = device::ArithmeticOf(options.machine.precision, true);
  train::MachineFacts facts;
  facts.dtype = arithmetic.dtype;
  facts.stream.gpu = &gpu.Context();
  const train::TokenFacts tokens{
      .vocabulary = options.plan.vocabulary, .train = options.plan.tokens, .source = "plan.tokens"};
  return train::MakePlan({options, deck, layout.gpus, tokens, facts, options.checkpoint.async});
}

class Llama3Plans : public testing::Test {
 protected:
  const device::Gpu gpu_{device::GpuContext{.name = "NVIDIA H100 80GB HBM3",
                                            .major = 9,
                                            .multiprocessors = 132,
                                            .shared_bytes = 232'448,
                                            .memory_bytes = 85'014'347'776}};
};

class Llama3Decks : public Llama3Plans, public testing::WithParamInterface<const char*> {};

TEST_P(Llama3Decks, StatedLayoutsFitInGpusOf80Gb) {
  const std::string text = TextOf(fmt::format("llama3_{}.in", GetParam()));
  const std::vector<StatedLayout> layouts = LayoutsIn(text);
  ASSERT_GE(layouts.size(), 3U);
  EXPECT_EQ(layouts.back().gpus, 512);
  for (const StatedLayout& layout : layouts) {
    SCOPED_TRACE(fmt::format("{} GPUs", layout.gpus));
    const train::Plan plan = PlanOnGpus(text, layout, gpu_);
    EXPECT_EQ(plan.grid.Ranks(), layout.gpus);
    EXPECT_EQ(plan.training.model.dtype, Dtype::kBfloat16);
    const device::MemoryTerms memory = train::PlanKinds(plan).front().memory;
    EXPECT_LT(memory.Total(), kUsable) << static_cast<double>(memory.Total()) / kGib << " GiB";
    // Nothing is left out: state of 16 bytes a parameter, shared out at best by all.
    const std::int64_t parameters = model::ParameterCount(plan.training.model.options);
    EXPECT_GT(memory.Total(), 16 * parameters / layout.gpus);
    RecordProperty(fmt::format("gib_{}", layout.gpus), static_cast<int>(memory.Total() / kGib));
  }
}

// The complaint about a layout that does not fit: all of 8 billion parameters on each GPU.
TEST_P(Llama3Decks, ALayoutThatDoesNotFitIsSeen) {
  if (std::string(GetParam()) == "1b") GTEST_SKIP() << "fits in one GPU";
  const std::string text = TextOf(fmt::format("llama3_{}.in", GetParam()));
  const train::Plan plan = PlanOnGpus(text, {8, {"grid.sharding=none"}}, gpu_);
  EXPECT_GT(train::PlanKinds(plan).front().memory.Total(), kUsable);
}

// As the deck says: 16 GPUs are too few for 70 billion parameters, however they share them.
TEST_F(Llama3Plans, SeventyBillionNeed32Gpus) {
  const std::string text = TextOf("llama3_70b.in");
  const std::string common = "grid.tensor=8 grid.sequence_parallel=yes model.recompute=full ";
  for (const char* more : {"grid.sharding=parameters", "grid.pipeline=2", "grid.context=2"}) {
    std::istringstream keys(common + more);
    const train::Plan plan =
        PlanOnGpus(text, {16, {std::istream_iterator<std::string>(keys), {}}}, gpu_);
    EXPECT_GT(train::PlanKinds(plan).front().memory.Total(), kUsable) << more;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Llama3Decks, testing::Values("1b", "3b", "8b", "70b"),
                         [](const auto& info) { return std::string("Of") + info.param; });

}  // namespace
}  // namespace trireme::test

namespace trireme::train {
namespace {

// run.canonical and the [grid] beside its axes as decks ask for them: what is read, and every
// complaint with its hint, to the letter.

constexpr std::int64_t kBatch = 32, kLength = 512, kVocabulary = 100;

// data, context, tensor ranks.
comm::GridShape Grid(int data, int tensor = 1, int context = 1) {
  comm::GridShape grid;
  grid.data = data;
  grid.tensor = tensor;
  grid.context = context;
  return grid;
}

deck::Deck DeckOf(const std::string& text) {
  static const deck::Schema schema = tasks::DeclareAll();  // decks refer to it
  app::CommandLine line;
  line.deck = "a.in";
  return app::ParseDeck(schema, line, text);
}

parallel::Canonical Read(const std::string& text, const comm::GridShape& grid,
                         std::int64_t batch = kBatch, std::int64_t length = kLength) {
  const deck::Deck deck = DeckOf(text);
  DeckOptions asked = ReadAll(deck);
  asked.data.sequence_length = length;
  const Request request{.options = asked, .deck = deck, .ranks = 1, .tokens = {}, .machine = {}};
  return MakeCanonical(request, model::WithVocabulary(asked.model, kVocabulary, deck), grid, batch);
}

// The message of the InputError; "" where there is none.
template <typename Action>
std::string Complaint(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

std::string Complaint(const std::string& text, const comm::GridShape& grid) {
  return Complaint([&] { Read(text, grid); });
}

// muP: 1 / m of the rate and m times the decay for matrices of blocks, whatever their group says;
// with Muon the square root of m.
TEST(MupRates, FollowTheWidth) {
  const std::string mup =
      "[model]\ndim=256\nparametrization=mup\nmup_base=64\n[optimizer]\nweight_decay=0.5\n";
  const auto groups = [&](const std::string& keys) {
    return ReadAll(DeckOf(mup + keys)).optimizer.groups;
  };
  constexpr auto kMatrices = static_cast<std::size_t>(ParameterGroup::kMatrices);
  for (const std::string kind : {"adamw", "lion", "muon"}) {
    const double m = kind == "muon" ? 2 : 4;
    const auto plain = groups("kind=" + kind);
    EXPECT_EQ(plain[kMatrices].rate, 1 / m) << kind;
    EXPECT_EQ(plain[kMatrices].decay, 0.5 * m) << kind;
    const auto own = groups("groups=matrices:3:0.25,norms:2\nkind=" + kind);
    EXPECT_EQ(own[kMatrices].rate, 3 / m) << kind;
    EXPECT_EQ(own[kMatrices].decay, 0.25 * m) << kind;
    for (std::size_t other = 0; other < kParameterGroups; ++other) {
      if (other == kMatrices) continue;
      EXPECT_EQ(plain[other].rate, 1) << kind;
      EXPECT_FALSE(plain[other].decay) << kind;
    }
  }
  EXPECT_EQ(Complaint([&] { groups("kind=sgd"); }),
            "a.in:7: optimizer.kind = sgd: sgd has no rates for model.parametrization = mup\n"
            "  Use adamw, lion or muon, or model.parametrization = standard.");
}

TEST(CanonicalDeck, NoneIsTheDefault) {
  EXPECT_FALSE(Read("", Grid(3, 2, 2)).On());
  EXPECT_FALSE(Read("[run]\ncanonical = none\n", Grid(3)).On());
  // As a resolved deck says it.
  EXPECT_FALSE(Read("[run]\ncanonical = none\ncanonical_leaf = 0\n", Grid(3)).On());
}

TEST(CanonicalDeck, GroupsSlicesAndLeaf) {
  EXPECT_EQ(Read("[run]\ncanonical = 8x2\ncanonical_leaf = 3\n", Grid(4, 2)),
            (parallel::Canonical{8, 2, 3}));
  EXPECT_EQ(Read("[run]\ncanonical = 1x1\ncanonical_leaf = 5\n", Grid(1)),
            (parallel::Canonical{1, 1, 5}));
  // A leaf is no more than a batch.
  EXPECT_EQ(Read("[run]\ncanonical = 2x1\ncanonical_leaf = 99\n", Grid(2)).leaf, kBatch);
}

TEST(CanonicalDeck, AnAutomaticLeafHasAbout4096TokensAndAtMostADthOfTheBatch) {
  const auto leaf = [](const char* canonical, std::int64_t batch, std::int64_t length) {
    return Read(std::string("[run]\ncanonical = ") + canonical, Grid(1), batch, length).leaf;
  };
  EXPECT_EQ(leaf("1x1", 32, 512), 8);
  EXPECT_EQ(leaf("4x1", 32, 512), 8);
  EXPECT_EQ(leaf("8x1", 32, 512), 4);
  EXPECT_EQ(leaf("8x1", 33, 512), 5);   // rounded up: no more than 8 groups
  EXPECT_EQ(leaf("64x1", 33, 512), 1);  // most groups are empty
  EXPECT_EQ(leaf("1x1", 32, 5000), 1);
}

TEST(CanonicalDeck, TheLayoutDependsOnNothingElse) {
  for (const int data : {1, 2, 4}) {
    for (const int tensor : {1, 2}) {
      EXPECT_EQ(Read("[run]\ncanonical = 4x2\n", Grid(data, tensor)),
                (parallel::Canonical{4, 2, 8}));
    }
  }
}

TEST(CanonicalDeck, WhatIsNoPairOfPowers) {
  for (const std::string value : {"3x2", "4x3", "4", "4x", "x2", "4X2", "4 x 2", "4x2x1", "0x2",
                                  "4x0", "-4x2", "4x-2", "yes", "None", "4294967296x1", "+4x2"}) {
    EXPECT_EQ(Complaint("[run]\ncanonical = " + value + "\n", Grid(1)),
              "a.in:2: run.canonical = " + value + ": \"" + value +
                  "\" is not DxT with powers of two D and T\n"
                  "  What fits: none, or for example 4x2: up to 4 data and 2 tensor ranks.");
  }
}

TEST(CanonicalDeck, ALeafWithoutIt) {
  const char* wanted =
      "a.in:2: run.canonical_leaf = 4: run.canonical is none\n"
      "  What fits: run.canonical = 1x1 or more, or leave the leaf out.";
  EXPECT_EQ(Complaint("[run]\ncanonical_leaf = 4\n", Grid(1)), wanted);
  EXPECT_EQ(Complaint("[run]\ncanonical_leaf = 4\ncanonical = none\n", Grid(1)), wanted);
}

TEST(CanonicalDeck, ContextRanks) {
  EXPECT_EQ(Complaint("[grid]\ncontext = 2\n[run]\ncanonical = 4x2\n", Grid(2, 1, 2)),
            "a.in:2: grid.context = 2: a ring adds up attention in an order of its own, but "
            "run.canonical = 4x2 asks for the same bits in every layout\n"
            "  What fits: grid.context = 1, or run.canonical = none.");
}

TEST(CanonicalDeck, DataRanksThatDoNotDivide) {
  EXPECT_EQ(Complaint("[grid]\ndata = 8\n[run]\ncanonical = 4x2\n", Grid(8)),
            "a.in:2: grid.data = 8: 8 data ranks do not divide the 4 of run.canonical = 4x2\n"
            "  What fits: 1, 2 or 4 data ranks, or run.canonical = 8x2.");
  // Rest of the job's ranks; three never divide.
  EXPECT_EQ(
      Complaint("[run]\ncanonical = 4x2\n", Grid(3)),
      "a.in: grid.data = 0 (default): 3 data ranks do not divide the 4 of run.canonical = 4x2\n"
      "  What fits: 1, 2 or 4 data ranks.");
  EXPECT_EQ(Complaint("[grid]\ndata = 3\n[run]\ncanonical = 1x2\n", Grid(3)),
            "a.in:2: grid.data = 3: 3 data ranks do not divide the 1 of run.canonical = 1x2\n"
            "  What fits: 1 data rank.");
}

TEST(CanonicalDeck, TensorRanksThatDoNotDivide) {
  EXPECT_EQ(Complaint("[grid]\ntensor = 4\n[run]\ncanonical = 4x2\n", Grid(1, 4)),
            "a.in:2: grid.tensor = 4: 4 tensor ranks do not divide the 2 of run.canonical = 4x2\n"
            "  What fits: grid.tensor = 1 or 2, or run.canonical = 4x4.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 3\n[run]\ncanonical = 4x2\n", Grid(1, 3)),
            "a.in:2: grid.tensor = 3: 3 tensor ranks do not divide the 2 of run.canonical = 4x2\n"
            "  What fits: grid.tensor = 1 or 2.");
}

TEST(CanonicalDeck, MoreSlicesThanKeyValueHeads) {
  EXPECT_EQ(
      Complaint("[model]\nheads = 12\nkv_heads = 6\ndim = 48\nffn = 64\n[run]\ncanonical = 2x8\n",
                Grid(2)),
      "a.in:7: run.canonical = 2x8: 8 slices, but model.kv_heads = 6, model.heads = 12, "
      "model.ffn = 64, vocabulary 100: each slice needs one of each\n"
      "  What fits: run.canonical = 2x4.");
}

TEST(CanonicalDeck, MicroBatchesAreWholeLeaves) {
  const parallel::Canonical leaf_of_four{4, 1, 4};
  const auto check = [&](int asked, const parallel::Canonical& canonical) {
    const deck::Deck deck = DeckOf("[data]\nmicro_batch = " + std::to_string(asked) + "\n");
    const DeckOptions options = ReadAll(deck);
    CheckLeaves({.options = options, .deck = deck, .ranks = 1, .tokens = {}, .machine = {}},
                canonical);
  };
  for (const int fits : {0, 4, 8, 100}) check(fits, leaf_of_four);
  check(7, {});
  for (const auto& [asked, fits] :
       {std::pair(6, "4 or 8"), std::pair(1, "4 or 8"), std::pair(11, "8 or 12")}) {
    EXPECT_EQ(
        Complaint([&, asked = asked] { check(asked, leaf_of_four); }),
        "a.in:2: data.micro_batch = " + std::to_string(asked) +
            ": it is not a multiple of the leaf, 4 sequences\n  What fits: data.micro_batch = " +
            fits + ".");
  }
}

std::string GridComplaint(const std::string& keys, const comm::GridShape& grid) {
  const deck::Deck deck = DeckOf("[grid]\n" + keys);
  return Complaint([&] { comm::ReadGridOptions(comm::Read(deck), deck, grid); });
}

TEST(GridDeck, WhatIsShared) {
  const deck::Deck deck = DeckOf("[grid]\nsharding = gradients\nshard_group = 6\n");
  const auto options = comm::ReadGridOptions(comm::Read(deck), deck, Grid(6, 1, 2));
  EXPECT_EQ(options.sharding, comm::Sharding::kGradients);
  EXPECT_EQ(options.shard_group, 6);
}

TEST(GridDeck, AShardGroupThatDoesNotDivide) {
  EXPECT_EQ(GridComplaint("sharding = parameters\nshard_group = 5\n", Grid(6, 2, 2)),
            "a.in:3: grid.shard_group = 5: it does not divide data 6 x context 2 = 12 ranks\n"
            "  What fits: grid.shard_group = 4 or 6, or 0 (all of them).");
  EXPECT_EQ(GridComplaint("sharding = optimizer\nshard_group = 2\n", Grid(1, 2)),
            "a.in:3: grid.shard_group = 2: it does not divide data 1 x context 1 = 1 rank\n"
            "  What fits: grid.shard_group = 1, or 0 (all of them).");
}

TEST(GridDeck, AShardGroupOfNothing) {
  EXPECT_EQ(GridComplaint("shard_group = 2\n", Grid(4)),
            "a.in:2: grid.shard_group = 2: nothing is sharded with grid.sharding = none\n"
            "  What fits: grid.sharding = optimizer, gradients or parameters; or leave "
            "grid.shard_group out.");
  EXPECT_EQ(GridComplaint("shard_group = 0\n", Grid(4)), "");
}

TEST(GridDeck, SequenceParallelOnOneTensorRank) {
  EXPECT_EQ(GridComplaint("sequence_parallel = yes\n", Grid(4)),
            "a.in:2: grid.sequence_parallel = yes: it cuts the rows over the tensor group, which "
            "has one rank\n"
            "  What fits: grid.tensor >= 2, or grid.sequence_parallel = no.");
}

TEST(GridDeck, AKindOfShardingThatIsNone) {
  EXPECT_EQ(Complaint([] { DeckOf("[grid]\nsharding = zero3\n"); }),
            "a.in:2: grid.sharding = zero3: not one of none, optimizer, gradients, parameters "
            "(default: none)");
}

}  // namespace
}  // namespace trireme::train
