// Training on a GPU and on the CPU, the same run: losses, norms, weights and moments; the same bits
// with and without graphs, and whatever is evaluated in between.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "one_rank.hpp"

namespace trireme::test {
namespace {

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
  const std::string deck = DeckOf(GetParam().model);
  const Dtype on_cpu = SumTypeOf(GetParam().dtype);
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

INSTANTIATE_TEST_SUITE_P(Models, SameBits,
                         testing::Values(kTrainingCases[2], kTrainingCases[3], kTrainingCases[4],
                                         kTrainingCases[5]),
                         [](const auto& info) { return std::string(info.param.name); });

// Planned without a run, on the card's facts alone: the bytes that the run takes.
TEST_P(SameBits, PlannedMemoryIsTheRuns) {
  for (const char* recompute : {"none", "selective", "full"}) {
    const std::string deck =
        DeckOf(std::string(GetParam().model) + "recompute=" + recompute + "\n");
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

// Recomputation, plain descent, tied weights with a learned position: the same losses.
TEST_F(TrainingOnGpu, WhateverTheModel) {
  const std::array decks = {
      DeckOf(kLlama, "kind=sgd\nweight_decay=0.01\n"),
      DeckOf(std::string(kCourse) + "recompute=full\n"),
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

// Only whole batches are recorded; a step by itself, then a recorded one, then one that is launched
// again.
TEST_F(TrainingOnGpu, TheLossOfAReplayedStepIsThatOfItsBatch) {
  const std::string deck = DeckOf(kLlama);
  OneRank cpu = OnHost(deck), gpu = OnCard(deck, Dtype::kFloat32);
  for (std::int64_t step = 1; step <= 2 * kStepsAnEpoch; ++step) {
    EXPECT_LT(WorstRelative(gpu.Train(step), cpu.Train(step)), kTrainingCases[3].losses) << step;
  }
}

}  // namespace
}  // namespace trireme::test
