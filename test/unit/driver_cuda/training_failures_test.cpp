// Values that are not finite on a GPU are named, and the weights are those before the step.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "one_rank.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace trireme::test
