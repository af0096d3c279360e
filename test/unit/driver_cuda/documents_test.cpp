// Document masks on a GPU: whole runs against the CPU's, graphs, and the begins of documents on
// their way there.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "masked_tokens.hpp"
#include "one_rank.hpp"
#include "staged_testing.hpp"

namespace trireme::test {
namespace {

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

}  // namespace
}  // namespace trireme::test
