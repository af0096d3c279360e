// Transfers longer than MPI can count, 2^31 - 1 elements, are refused at the plan with the key that
// they follow from; the longest that can be counted are not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan_of.hpp"
#include "trireme/base/error.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;

// A sequence of activations has 2^28 elements: 8 of them are too many, 7 are not.
constexpr train::TokenFacts kTokens{.vocabulary = 1000, .train = 100'000'000, .source = "made up"};
const std::string kDeck =
    "[data]\nbatch=64\nsequence_length=65536\n[model]\ndim=4096\nheads=32\nffn=4096\nlayers=4\n"
    "max_positions=65536\nposition=rope\n[schedule]\nsteps=20\n";

// Message of the refusal of rank 0's transfers; empty: there was none.
std::string Refusal(const std::vector<std::string>& keys, int ranks,
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
    const std::string refusal = Refusal(With(each.keys, 8), each.ranks);
    EXPECT_THAT(refusal, HasSubstr(each.key)) << each.keys.back();
    EXPECT_THAT(refusal, HasSubstr("2147483648 elements, and MPI counts to 2147483647"));
    EXPECT_THAT(refusal, HasSubstr("What helps: a smaller data.micro_batch"));
    EXPECT_EQ(Refusal(With(each.keys, 7), each.ranks), "") << each.keys.back();
  }
}

// A table of 2^31 + 2^19 elements, whole, in halves, and not sharded.
TEST(Lengths, ShardedStateThatMpiCannotCountIsRefused) {
  train::TokenFacts tokens = kTokens;
  tokens.vocabulary = (1 << 19) + 128;
  for (const char* sharding : {"optimizer", "gradients", "parameters"}) {
    const std::string key = std::string("grid.sharding=") + sharding;
    const std::string refusal = Refusal(With({key}, 1), 2, tokens);
    EXPECT_THAT(refusal, HasSubstr("grid.sharding: ")) << sharding;
    EXPECT_THAT(refusal, HasSubstr("more ranks along grid.tensor"));
    EXPECT_EQ(Refusal(With({key, "grid.tensor=2"}, 1), 4, tokens), "") << sharding;
  }
  EXPECT_EQ(Refusal(With({}, 1), 2, tokens), "");
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

}  // namespace
}  // namespace trireme::test
