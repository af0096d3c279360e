// Training on a GPU: equal to the CPU's, with documents, with kept products, and failures.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "folders.hpp"
#include "one_rank.hpp"
#include "small_run.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"

namespace trireme::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Training on a GPU and on the CPU, the same run: losses, norms, weights and moments; the same bits
// with and without graphs, and whatever is evaluated in between.

struct TrainingCase {
  const char* name;
  const char* model;
  Dtype dtype;
  double losses;  // relative, each step's loss and norm
  double state;   // weights and moments, in rule 4's norm
};
// Differences in fp32 and fp64 come from the order of sums, grown over 20 steps. bf16 rounds every
// activation: its norms and moments are not compared so closely (0: not at all).
constexpr TrainingCase kTrainingCases[] = {{"CourseFp64", kCourse, Dtype::kFloat64, 1e-13, 1e-12},
                                           {"LlamaFp64", kLlama, Dtype::kFloat64, 1e-13, 1e-12},
                                           {"QwenFp64", kQwen, Dtype::kFloat64, 1e-13, 1e-12},
                                           {"CourseFp32", kCourse, Dtype::kFloat32, 1e-6, 2e-5},
                                           {"LlamaFp32", kLlama, Dtype::kFloat32, 1e-6, 2e-5},
                                           {"QwenFp32", kQwen, Dtype::kFloat32, 1e-6, 2e-5},
                                           {"CourseBf16", kCourse, Dtype::kBfloat16, 5e-3, 0},
                                           {"LlamaBf16", kLlama, Dtype::kBfloat16, 5e-3, 0},
                                           {"QwenBf16", kQwen, Dtype::kBfloat16, 5e-3, 0}};

class LikeTheCpu : public TrainingOnGpu, public testing::WithParamInterface<TrainingCase> {};

TEST_P(LikeTheCpu, TwentySteps) {
  const std::string deck = DeckOf(GetParam().model);
  const Dtype on_cpu = SumTypeOf(GetParam().dtype);
  OneRank cpu = OnHost(deck, on_cpu), gpu = OnCard(deck, GetParam().dtype);
  gpu.TakeFirstAlgorithms();
  const std::vector<double> wanted = cpu.Train(kSteps), got = gpu.Train(kSteps);
  ASSERT_EQ(got.size(), static_cast<std::size_t>(kSteps));
  EXPECT_LT(WorstRelative(got, wanted), GetParam().losses);
  EXPECT_LT(wanted.back(), 0.96 * wanted.front());  // learns
  RecordProperty("losses", fmt::format("{:.1e}", WorstRelative(got, wanted)));
  const Tensors state = gpu.State(), wanted_state = cpu.State();
  ASSERT_EQ(state.size(), wanted_state.size());
  if (GetParam().state == 0) return;
  EXPECT_LT(WorstRelative(gpu.Norms(), cpu.Norms()), GetParam().losses);
  const double difference = RuleFourDifference(state, wanted_state).relative;
  RecordProperty("state", fmt::format("{:.1e}", difference));
  EXPECT_LT(difference, GetParam().state);
}

INSTANTIATE_TEST_SUITE_P(Models, LikeTheCpu, testing::ValuesIn(kTrainingCases),
                         [](const auto& info) { return std::string(info.param.name); });

class SameBits : public TrainingOnGpu, public testing::WithParamInterface<TrainingCase> {};

TEST_P(SameBits, WithGraphsAndWithout) {
  const std::string deck = DeckOf(GetParam().model);
  OneRank graphs = OnCard(deck, GetParam().dtype, true),
          eager = OnCard(deck, GetParam().dtype, false);
  const std::vector<double> losses = graphs.Train(3 * kStepsAnEpoch);
  EXPECT_EQ(eager.Train(3 * kStepsAnEpoch), losses);
  EXPECT_EQ(graphs.Norms(), eager.Norms());
  EXPECT_EQ(graphs.State(), eager.State());
}

// Batches of an evaluation are larger and smaller than those of a step, and a recorded step reads
// the same memory.
TEST_P(SameBits, WhateverIsEvaluatedInBetween) {
  const Dtype on_cpu = SumTypeOf(GetParam().dtype);
  for (const char* optimizer : {"", "average=0.9\naverage_from=2\n"}) {
    const std::string deck = DeckOf(GetParam().model, optimizer);
    OneRank plain = OnCard(deck, GetParam().dtype), evaluated = OnCard(deck, GetParam().dtype);
    OneRank cpu = OnHost(deck, on_cpu);
    constexpr std::array kSplits = {data::Split::kValid, data::Split::kTrain};
    for (std::int64_t step = 1; step <= 2 * kStepsAnEpoch + 1; ++step) {
      const std::vector<double> losses = plain.Train(step);
      EXPECT_EQ(evaluated.Train(step), losses) << step;
      cpu.Train(step);
      const data::Split split = kSplits[static_cast<std::size_t>(step) % 2];
      EXPECT_NEAR(evaluated.Evaluate(split) / cpu.Evaluate(split), 1, GetParam().losses) << step;
    }
    EXPECT_EQ(plain.State(), evaluated.State());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SameBits,
                         testing::Values(kTrainingCases[2], kTrainingCases[3], kTrainingCases[4],
                                         kTrainingCases[5]),
                         [](const auto& info) { return std::string(info.param.name); });

// Planned without a run, on the card's facts alone: the bytes that the run takes.
TEST_P(SameBits, PlannedMemoryIsTheRuns) {
  for (const char* recompute : {"none", "selective", "full"}) {
    const std::string deck = DeckOf(std::string(GetParam().model) + "recompute=" + recompute + "\n",
                                    *recompute == 'f' ? "average=0.9\n" : "");
    train::Plan plan = PlanOf(deck, Tokens(), 1, GetParam().dtype);
    plan.machine.stream = Stream();
    const device::MemoryTerms planned = train::PlanMemory(plan, 0);
    OneRank run = OnCard(deck, GetParam().dtype);
    EXPECT_EQ(run.All().Memory(), planned) << recompute;
    EXPECT_GT(planned.activations, 0);
    run.Train(2);
    EXPECT_EQ(run.All().Memory(), planned) << recompute;
  }
}

// Recomputation, all optimizers, tied weights with a learned position: the same losses.
TEST_F(TrainingOnGpu, WhateverTheModel) {
  const std::array decks = {
      DeckOf(kLlama, "kind=sgd\nweight_decay=0.01\n"),
      DeckOf(kLlama, "kind=sgd\nmomentum=0.5\ngroups=norms:0.5:0.1\n"),
      DeckOf(kLlama, "kind=lion\n"),
      DeckOf(kCourse, "kind=muon\nmuon_momentum=0.9\n"),
      DeckOf(std::string(kCourse) + "recompute=full\n"),
      DeckOf(std::string(kCourse) + "recompute=full\nword_dropout=0.2\nlayer_dropout=0.4\n"),
      DeckOf(std::string(kLlama) + "word_dropout=0.2\nlayer_dropout=0.4\nweight_dropout=0.2\n"),
      DeckOf(std::string(kLlama) + "parametrization=mup\nmup_base=6\nmup_base_head_dim=2\n",
             "z_loss=0.1\n"),
      DeckOf(std::string(kLlama) + "recompute=selective\n"),
      DeckOf("heads=3\nkv_heads=1\nhead_dim=4\ndim=13\nffn=19\nlayers=1\nmax_positions=7\n"
             "activation=gelu\nposition=learned\ntie_embeddings=yes\ndropout=0.1\n"
             "init_deviation=0.2\n")};
  for (const std::string& deck : decks) {
    OneRank cpu = OnHost(deck, Dtype::kFloat64), gpu = OnCard(deck, Dtype::kFloat64);
    const std::int64_t steps = kStepsAnEpoch + 2;
    EXPECT_LT(WorstRelative(gpu.Train(steps), cpu.Train(steps)), kTrainingCases[0].losses) << deck;
    EXPECT_LT(RuleFourDifference(gpu.State(), cpu.State()).relative, kTrainingCases[0].state)
        << deck;
  }
}

// Muon multiplies rounded copies.
TEST_F(TrainingOnGpu, MuonInBf16) {
  const std::string deck = DeckOf(kCourse, "kind=muon\n");
  OneRank cpu = OnHost(deck), gpu = OnCard(deck, Dtype::kBfloat16);
  train::Plan plan = PlanOf(deck, Tokens(), 1, Dtype::kBfloat16);
  plan.machine.stream = Stream();
  EXPECT_EQ(gpu.All().Memory(), train::PlanMemory(plan, 0));
  EXPECT_LT(WorstRelative(gpu.Train(kSteps), cpu.Train(kSteps)), 5e-3);
}

// Only whole batches are recorded; a step by itself, then a recorded one, then one that is launched
// again.
TEST_F(TrainingOnGpu, TheLossOfAReplayedStepIsThatOfItsBatch) {
  const std::string deck = DeckOf(kLlama);
  OneRank cpu = OnHost(deck), gpu = OnCard(deck, Dtype::kFloat32);
  for (std::int64_t step = 1; step <= 2 * kStepsAnEpoch; ++step) {
    EXPECT_LT(WorstRelative(gpu.Train(step), cpu.Train(step)), kTrainingCases[3].losses) << step;
  }
}

// Values that are not finite on a GPU are named, and the weights are those before the step.

constexpr const char* kAdvice = "The weights were not changed. Lower optimizer.learning_rate";

class NotFinite : public TrainingOnGpu, public testing::WithParamInterface<Dtype> {
 protected:
  // The parameter's elements become what `value` says of their number.
  static void Set(OneRank& run, const std::string& name, FunctionRef<float(std::int64_t)> value) {
    const train::StateOnHost blocks = run.All().ModelBlocks();
    bool found = false;
    for (const kernels::StateBlock& block : blocks.Blocks()) {
      if (block.name != name) continue;
      found = true;
      for (std::int64_t i = 0; i < block.end; ++i) static_cast<float*>(block.data)[i] = value(i);
    }
    ASSERT_TRUE(found) << name;
    run.All().StoreWeights(blocks);
  }
  static std::string Message(OneRank& run, std::int64_t step) {
    try {
      run.Step().Run(step);
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kFailed);
      return error.what();
    }
    return "nothing was thrown";
  }
  static std::vector<std::vector<std::byte>> Bits(OneRank& run) {
    std::vector<std::vector<std::byte>> bits;
    for (const train::StateOnHost& blocks :
         {run.All().ModelBlocks(), run.All().OptimizerBlocks()}) {
      for (const kernels::StateBlock& block : blocks.Blocks()) {
        const auto* const data = static_cast<const std::byte*>(block.data);
        bits.emplace_back(data, data + (block.end - block.begin) * 4);
      }
    }
    return bits;
  }
};

// In a step that runs by itself, one that is recorded, and one that is launched again.
TEST_P(NotFinite, ALossIsSaid) {
  for (const std::int64_t steps : {1, 2, 3}) {
    OneRank run = OnCard(DeckOf(kLlama), GetParam());
    run.Train(steps - 1);
    Set(run, "blocks.1.ffn.down.weight",
        [](std::int64_t i) { return i == 5 ? std::nanf("") : 0.1F; });
    const auto before = Bits(run);
    const std::string message = Message(run, steps - 1);
    EXPECT_THAT(message,
                HasSubstr("step " + std::to_string(steps) + ": the loss is not finite on rank 0"));
    EXPECT_THAT(message, HasSubstr(kAdvice));
    EXPECT_EQ(Bits(run), before);
  }
}

// Queries and values of no size, what they are made of and what they are multiplied with so large
// that the gradient of the weights that make them overflows, and nothing else: the loss is finite.
TEST_P(NotFinite, AGradientIsNamed) {
  for (const std::int64_t steps : {1, 2, 3}) {
    OneRank run = OnCard(DeckOf(kLlama), GetParam());
    run.Train(steps - 1);
    for (const char* name : {"query", "value"}) {
      Set(run, fmt::format("blocks.1.attention.{}.weight", name),
          [](std::int64_t) { return 0.0F; });
    }
    Set(run, "blocks.1.attention.output.weight", [](std::int64_t) { return 1e32F; });
    Set(run, "blocks.1.attention.norm.weight", [](std::int64_t) { return 1e8F; });
    const auto before = Bits(run);
    const std::string message = Message(run, steps - 1);
    EXPECT_THAT(message, HasSubstr("step " + std::to_string(steps) + ": the gradient of "));
    EXPECT_THAT(message, HasSubstr("blocks.1.attention.value.weight"));
    EXPECT_THAT(message, HasSubstr(" is not finite"));
    EXPECT_THAT(message, HasSubstr(kAdvice));
    EXPECT_EQ(Bits(run), before);
  }
}

// Gradients that are not finite, in a step that runs by itself, one that is recorded, and one that
// is launched again: the steps after it are those of a run that never saw it, though a recorded
// step relies on the update to clear them.
TEST_P(NotFinite, NothingOfAStepLeftOutIsLeftBehind) {
  constexpr std::int64_t kEnd = 6;
  for (const std::int64_t bad : {0, 1, 2}) {
    OneRank spoiled = OnCard(DeckOf(kLlama), GetParam()),
            other = OnCard(DeckOf(kLlama), GetParam());
    spoiled.TakeFirstAlgorithms();
    other.TakeFirstAlgorithms();
    for (std::int64_t step = 0; step < kEnd; ++step) {
      if (step != bad) {
        EXPECT_EQ(spoiled.Step().Run(step).loss, other.Step().Run(step).loss)
            << bad << ", " << step;
        continue;
      }
      const auto before = Bits(spoiled);
      const train::StateOnHost weights = spoiled.All().ModelBlocks();
      Set(spoiled, "blocks.1.ffn.down.weight", [](std::int64_t) { return std::nanf(""); });
      const auto result = spoiled.Step().Run(step, {}, train::OnFault::kSkip);
      ASSERT_TRUE(result.fault);
      EXPECT_THAT(result.fault->Text(), HasSubstr("the loss is not finite on rank 0"));
      EXPECT_TRUE(std::isnan(result.loss) && std::isnan(result.gradient_norm));
      spoiled.All().StoreWeights(weights);
      EXPECT_EQ(Bits(spoiled), before);
    }
    EXPECT_EQ(Bits(spoiled), Bits(other)) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NotFinite, testing::Values(Dtype::kFloat32, Dtype::kBfloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

// Document masks on a GPU: whole runs against the CPU's, graphs, and the begins of documents on
// their way there.

constexpr double kLosses = 1e-13, kState = 1e-12;  // training_test.cpp, in fp64
constexpr const char* kLearned =
    "heads=3\nkv_heads=1\nhead_dim=4\ndim=13\nffn=19\nlayers=1\nmax_positions=7\n"
    "activation=gelu\nposition=learned\ntie_embeddings=yes\ndropout=0.1\ninit_deviation=0.2\n";
constexpr const char* kDocumentsModels[] = {kCourse, kLlama, kLearned};

data::TokenData WithDocuments() {
  data::TokenData data = SyntheticTokens();
  AddDocuments(data);
  return data;
}

std::string Masked(const std::string& model) {
  return DeckOf(model) + "[data]\ndocument_mask=yes\n";
}

class DocumentsOnGpu : public TrainingOnGpu {
 protected:
  DocumentsOnGpu() : TrainingOnGpu(WithDocuments()) {}
};

TEST_F(DocumentsOnGpu, ARunIsTheCpus) {
  for (const char* model : kDocumentsModels) {
    const std::string deck = Masked(model);
    OneRank cpu = OnHost(deck, Dtype::kFloat64), gpu = OnCard(deck, Dtype::kFloat64);
    const std::int64_t steps = kStepsAnEpoch + 2;
    const std::vector<double> wanted = cpu.Train(steps);
    EXPECT_LT(WorstRelative(gpu.Train(steps), wanted), kLosses) << deck;
    EXPECT_LT(RuleFourDifference(gpu.State(), cpu.State()).relative, kState) << deck;
    EXPECT_NEAR(gpu.Evaluate(data::Split::kValid) / cpu.Evaluate(data::Split::kValid), 1, kLosses);
    OneRank without = OnHost(DeckOf(model), Dtype::kFloat64);
    EXPECT_GT(WorstRelative(without.Train(steps), wanted), 1e-6) << "the mask acts";
  }
}

TEST_F(DocumentsOnGpu, GraphsReadTheBeginsOfTheirStep) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    for (const char* model : kDocumentsModels) {
      const std::string deck = Masked(model);
      OneRank graphs = OnCard(deck, dtype, true), eager = OnCard(deck, dtype, false);
      const std::vector<double> losses = graphs.Train(2 * kStepsAnEpoch);
      EXPECT_EQ(eager.Train(2 * kStepsAnEpoch), losses) << deck;
      EXPECT_EQ(graphs.State(), eager.State()) << deck;
    }
  }
}

TEST_F(DocumentsOnGpu, PlannedMemoryIsTheRuns) {
  const std::string deck = Masked(kLlama);
  train::Plan plan = PlanOf(deck, Tokens(), 1, Dtype::kFloat32);
  plan.machine.stream = Stream();
  const device::MemoryTerms planned = train::PlanMemory(plan, 0);
  OneRank run = OnCard(deck, Dtype::kFloat32), plain = OnCard(DeckOf(kLlama), Dtype::kFloat32);
  EXPECT_EQ(run.All().Memory(), planned);
  EXPECT_NE(run.All().Memory(), plain.All().Memory());
}

// A batch without documents between two with them: its windows are one document each.
TEST_F(DocumentsOnGpu, BeginsArriveWithTheirBatches) {
  model::StagedBatches::Limits limits = kStagedLimits;
  limits.begins = true;
  model::StagedBatches staged(Stream(), limits), plain(Stream(), kStagedLimits);
  EXPECT_GT(staged.Bytes(), plain.Bytes());
  Batches batches = NumberedBatches(1, {3, 0, 2});
  for (std::int32_t number = 1; number <= 3; ++number) {
    for (data::Entry& batch : batches) {
      batch.begins.clear();
      for (std::size_t i = 0; number != 2 && i < batch.inputs.size(); ++i) {
        batch.begins.push_back(number * 1000 + static_cast<std::int32_t>(i));
      }
    }
    Use(staged, batches);
    EXPECT_TRUE(Sees(Stream(), staged, batches)) << number;
    for (const std::size_t entry : {0, 2}) {
      std::vector<std::int32_t> got(batches[entry].inputs.size(), -1);
      device::CopyOut(Stream(), staged.At(entry).begins, got.data(),
                      static_cast<std::int64_t>(got.size() * sizeof got[0]));
      std::vector<std::int32_t> wanted = batches[entry].begins;
      wanted.resize(got.size());
      EXPECT_EQ(got, wanted) << number;
    }
  }
  Use(plain, NumberedBatches(1, {3}));
  EXPECT_EQ(plain.At(0).begins, nullptr);
  EXPECT_THROW((void)plain.Stage(batches), Error);
}

// run.products: a run takes the algorithms that an earlier one chose and kept, unless their file is
// damaged, or another card's.

class KeptProducts : public TrainingOnGpu {
 protected:
  std::string Read() const {
    std::ifstream in(file_);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const { std::ofstream(file_) << text; }
  // Two steps with that file; the algorithms at their end.
  json Train() const {
    OneRank run = OnCard(DeckOf(kLlama), Dtype::kFloat32, true, file_);
    run.Train(2);
    return json::parse(run.Libraries().Chosen());
  }
  TemporaryFolder folder_;
  std::string file_ = folder_ / "products.json";
};

TEST_F(KeptProducts, AreTakenByTheNextRun) {
  const json first = Train();
  const json kept = json::parse(Read());
  EXPECT_GT(kept.at("products").size(), 5u);
  EXPECT_EQ(kept, first);
  EXPECT_EQ(Train(), first);
  EXPECT_EQ(json::parse(Read()), first);
  // Products that this run does not compute are kept all the same.
  json more = kept;
  more["products"].push_back(kept["products"][0]);
  more["products"].back()["product"] = "another";
  Write(more.dump());
  EXPECT_EQ(Train().at("products").size(), kept.at("products").size() + 1);
}

TEST_F(KeptProducts, AreChosenAnewWhereTheFileIsOfNoUse) {
  const json first = Train();
  json other_card = first, other_library = first, damaged = first;
  other_card["card"] = "Another card";
  other_library["library"] = "cuBLASLt 1";
  damaged["products"][0]["algorithm"] = "not hexadecimal";
  for (const std::string& text :
       {std::string("{\"card\": "), std::string("no JSON at all"), std::string("{}"),
        other_card.dump(), other_library.dump(), damaged.dump()}) {
    Write(text);
    const json chosen = Train();
    EXPECT_EQ(chosen.at("card"), first.at("card")) << text;
    EXPECT_EQ(chosen.at("products").size(), first.at("products").size()) << text;
    EXPECT_EQ(json::parse(Read()), chosen) << text;
  }
}

// Text of an algorithm, but not of this product.
TEST_F(KeptProducts, AnAlgorithmThatDoesNotFitIsNamedAndReplaced) {
  const json first = Train();
  json kept = first;
  for (json& product : kept["products"]) {
    std::string& algorithm = product["algorithm"].get_ref<std::string&>();
    algorithm.assign(algorithm.size(), 'f');
  }
  Write(kept.dump());
  testing::internal::CaptureStderr();
  const json chosen = Train();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("the algorithm kept for the matrix product "));
  EXPECT_THAT(said, HasSubstr("run.products"));
  EXPECT_EQ(chosen.at("products").size(), first.at("products").size());
  for (const json& product : chosen["products"]) {
    EXPECT_NE(product.at("algorithm").get<std::string>().find_first_not_of('f'), std::string::npos);
  }
  EXPECT_EQ(json::parse(Read()), chosen);
}

TEST_F(KeptProducts, AFileThatCannotBeWrittenIsAWarning) {
  Write("no folder");
  testing::internal::CaptureStderr();
  OneRank run = OnCard(DeckOf(kLlama), Dtype::kFloat32, true, file_ + "/products.json");
  const std::vector<double> losses = run.Train(2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("could not be kept"));
  EXPECT_EQ(losses.size(), 2u);
}

}  // namespace
}  // namespace trireme::test
