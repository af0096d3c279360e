// Baselines on the harbour corpus, whose entropy no honest model goes below, and on masked splits.
#include "trireme/tasks/evaluate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "harbour_predictor.hpp"
#include "trireme/data/tokenize.hpp"
#include "word_tokens.hpp"

namespace trireme::tasks {
namespace {

using test::Self;
using test::WordData;

double Nats(const Baselines::Result& result, const std::string& name) {
  for (const auto& [each, nats] : result.nats) {
    if (each == name) return nats;
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

TEST(Baselines, OfHarbourLieAboveItsEntropyInOrder) {
  constexpr std::int64_t kTokens = 300000, kValid = 20000;
  const data::HarbourGrammar grammar;
  data::TokenData data = WordData({});
  data.vocabulary = grammar.Words();
  data.tokenizer = "harbour";
  for (const data::Split split : data::kSplits) {
    data.tokens[static_cast<std::size_t>(split)] =
        grammar.Generate(1, split, split == data::Split::kTrain ? kTokens : kValid);
  }
  const comm::Communicator self = Self();
  const data::TokenFile file(self, data);
  const Baselines::Result result = Baselines(file, false).Evaluate(file, data::Split::kValid);
  EXPECT_EQ(result.targets, kValid - 1);
  const auto& ids = data.tokens[1];
  const std::vector<double> exact =
      data::PredictiveLoss(std::span(ids).first(ids.size() - 1), std::span(ids).subspan(1));
  double floor = 0;
  for (const double loss : exact) floor += loss;
  EXPECT_GT(Nats(result, "5-gram"), floor);
  EXPECT_LT(Nats(result, "5-gram"), 1.3 * floor);
  EXPECT_GT(Nats(result, "unigram"), Nats(result, "5-gram"));
  EXPECT_GT(Nats(result, "uniform"), Nats(result, "unigram"));
  EXPECT_DOUBLE_EQ(Nats(result, "uniform"),
                   std::log(static_cast<double>(file.VocabularySize())) * (kValid - 1));
}

// Add-one: of the targets 2 2 3 that count.
TEST(Baselines, UnigramCountsTheTargetsThatCount) {
  data::TokenData data = WordData({"<eos>", "<unk>", "a", "b"});
  data.tokens[0] = {2, 2, 2, 3, 3};
  data.counted[0] = {1, 1, 1, 1, 0};
  data.tokens[1] = {0, 2, 3, 1};
  data.counted[1] = {1, 1, 1, 0};
  const comm::Communicator self = Self();
  const data::TokenFile file(self, data);
  const Baselines::Result result = Baselines(file, false).Evaluate(file, data::Split::kValid);
  EXPECT_EQ(result.targets, 2);
  EXPECT_NEAR(Nats(result, "unigram"), -std::log(3.0 / 7) - std::log(2.0 / 7), 1e-14);
}

TEST(Baselines, ContextsAndTargetsRespectDocuments) {
  data::TokenData data = WordData({"<eos>", "<unk>", "a", "b"});
  data.tokens[0] = {2, 3, 2, 3, 2, 2};
  data.documents[0] = {0, 2, 4};
  data.counted[0] = {1, 0, 1, 1, 1, 1};
  const comm::Communicator self = Self();
  const data::TokenFile file(self, data);
  const TargetStream apart = ReadTargets(file, data::Split::kTrain, true);
  EXPECT_THAT(apart.known, testing::ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(apart.targets, testing::ElementsAre(3, 5));
  const TargetStream together = ReadTargets(file, data::Split::kTrain, false);
  EXPECT_THAT(together.known, testing::ElementsAre(0, 1, 2, 3, 4, 4));
  EXPECT_THAT(together.targets, testing::ElementsAre(2, 3, 4, 5));
}

TEST(Baselines, LargeTrainSplitsAreLeftOutAndSaidSo) {
  const comm::Communicator self = Self();
  data::TokenData data = WordData({"<eos>", "<unk>", "a"});
  data.tokens[0].assign(11, 2);
  const data::TokenFile file(self, data);
  const Baselines baselines(file, false, 10);
  EXPECT_THAT(baselines.LeftOut(), testing::HasSubstr("11 tokens, more than 10"));
  const Baselines::Result result = baselines.Evaluate(file, data::Split::kValid);
  ASSERT_EQ(result.nats.size(), 1U);
  EXPECT_EQ(result.nats.front().first, "uniform");
  EXPECT_EQ(Baselines(file, false, 11).LeftOut(), "");
}

}  // namespace
}  // namespace trireme::tasks
