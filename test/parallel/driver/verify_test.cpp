// Verification: sound layouts pass on a deck shrunk to their divisibilities, and each deliberate
// mistake is found, named and placed.
#include "trireme/driver/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "small_run.hpp"
#include "trireme/driver/command_line.hpp"
#include "verify_compare.hpp"

namespace trireme::test {
namespace {

using driver::TrainingSetup;
using driver::Verification;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 8;

// Pre-norm, tied, dropout everywhere; far too large to be run here.
constexpr const char* kDeck =
    R"([data]
sequence_length = 512
batch = 96
micro_batch = 8
[model]
dim = 1024
heads = 8
kv_heads = 4
layers = 24
ffn = 4096
dropout = 0.1
attention_dropout = 0.1
ffn_dropout = 0.1
max_positions = 1024
[optimizer]
label_smoothing = 0.1
[schedule]
steps = 1000
warmup_steps = 100
)";

class Verifying : public testing::Test {
 protected:
  Verifying() : world_(World()), folder_(world_) {}

  struct Large {
    driver::Job job;
    comm::GridShape grid;
    TrainingSetup setup;
  };
  // The deck with other keys, "section.key=value ...", as large as it is.
  Large Read(const std::string& keys, int ranks = kRanks) const {
    static const input::Schema schema = driver::DeclareAll();
    std::istringstream words(keys);
    driver::Job job;
    job.deck =
        input::Deck::Parse(schema, kDeck, "deck", {std::istream_iterator<std::string>(words), {}});
    job.stream.threads = 1;
    const comm::GridShape grid = comm::ReadGrid(job.deck, ranks);
    constexpr std::int64_t kTokens = 1 << 20;  // windows enough for the largest batch
    TrainingSetup setup = driver::ReadTraining(job, grid, kVocabulary, kTokens);
    return {std::move(job), grid, setup};
  }

  Verification Run(const std::string& keys, Defect defect = Defect::kNone,
                   Dtype precision = Dtype::kFloat32) {
    const Large large = Read(keys);
    const comm::ProcessGrid grid(world_, large.grid,
                                 comm::ReadGridOptions(large.job.deck, large.grid));
    TrainingSetup small = driver::Shrink(large.setup, large.grid);
    small.defect = defect;
    const std::string folder = folder_ / std::to_string(runs_++);
    world_.Together([&] {
      if (world_.IsRoot()) std::filesystem::create_directories(folder);
    });
    return driver::Verify(grid, small, precision, folder);
  }

  comm::Communicator world_;
  SharedFolder folder_;
  int runs_ = 0;
};

const driver::VerifiedQuantity& Quantity(const Verification& verification,
                                         const std::string& name) {
  for (const auto& quantity : verification.quantities) {
    if (quantity.name == name) return quantity;
  }
  ADD_FAILURE() << "no quantity " << name;
  return verification.quantities.front();
}

TEST_F(Verifying, SoundLayoutsPass) {
  for (const char* keys : {
           "grid.data=8",
           "grid.tensor=8",
           "grid.tensor=8 grid.sequence_parallel=yes",
           "grid.pipeline=8",
           "grid.pipeline=2 grid.tensor=2 grid.sequence_parallel=yes",
           "grid.pipeline=4 pipeline.schedule=zero_bubble",
           "grid.pipeline=2 grid.tensor=2 pipeline.schedule=gpipe model.position=rope "
           "model.norm=rmsnorm model.activation=swiglu model.bias=no model.recompute=full",
           "grid.pipeline=2 grid.sequence_parallel=yes grid.tensor=4 pipeline.schedule=interleaved "
           "pipeline.chunks=3 model.recompute=selective",
           "grid.data=2 grid.tensor=4 model.norm_position=post model.activation=relu "
           "model.position=sinusoidal model.tie_embeddings=no model.init=xavier "
           "model.scale_embedding=yes optimizer.clip_norm=0",
           "grid.pipeline=2 grid.tensor=2 optimizer.kind=sgd",
       }) {
    const Verification verification = Run(keys);
    EXPECT_EQ(verification.failure, "") << keys << verification.hint;
    // Every tensor was looked at, and rounding seen: nothing was compared with itself.
    double largest = 0;
    for (const auto& tensor : verification.tensors) largest = std::max(largest, tensor.gradient);
    EXPECT_GT(largest, 0) << keys;
    EXPECT_EQ(verification.quantities.size(), 6U) << keys;
    for (const auto& quantity : verification.quantities) {
      EXPECT_TRUE(quantity.Within()) << keys << quantity.name;
    }
  }
}

TEST_F(Verifying, Fp64NeedsNoSecondRun) {
  const Verification verification = Run("grid.data=8", Defect::kNone, Dtype::kFloat64);
  EXPECT_EQ(verification.failure, "");
  EXPECT_EQ(verification.quantities.size(), 5U);
}

TEST_F(Verifying, FindsANormWhoseGradientIsNotSummed) {
  for (const char* keys : {"grid.tensor=8 grid.sequence_parallel=yes",
                           "grid.tensor=2 grid.pipeline=2 grid.sequence_parallel=yes"}) {
    const Verification verification = Run(keys, Defect::kNormGradientNotSummed);
    EXPECT_THAT(verification.failure,
                AllOf(HasSubstr("in step 1 the gradient of blocks.0.attention.norm.weight"),
                      HasSubstr("most on rank "), HasSubstr("tensor ")))
        << keys;
    EXPECT_THAT(verification.hint, HasSubstr("grid.sequence_parallel = no")) << keys;
    EXPECT_FALSE(Quantity(verification, "gradient norm, fp64").Within()) << keys;
    const std::string table = driver::Describe(verification);
    EXPECT_THAT(table, AllOf(HasSubstr("FAIL"), HasSubstr(".norm.weight"))) << keys;
  }
}

TEST_F(Verifying, FindsAnAverageOfAverages) {
  for (const char* keys : {"grid.data=8", "grid.tensor=4",
                           // One window a rank, and none on some: unequal already in step 1.
                           "grid.tensor=2 data.batch=3"}) {
    const Verification verification = Run(keys, Defect::kAverageOfAverages);
    EXPECT_THAT(verification.failure, HasSubstr("the gradient of embedding.token.weight")) << keys;
    EXPECT_THAT(verification.hint, HasSubstr("grid.data = 1")) << keys;
  }
}

// Not the layout's mistake but the machine's: replicas that no longer agree.
TEST_F(Verifying, FindsASumThatOneDataRankReadsWrongly) {
  for (const char* keys : {"grid.data=8", "grid.tensor=2 grid.pipeline=2"}) {
    const Verification verification = Run(keys, Defect::kDataSumSpoiled);
    EXPECT_THAT(verification.failure,
                HasSubstr("in step 1 the gradient of embedding.token.weight"));
    EXPECT_THAT(verification.failure, HasSubstr("data 1,")) << keys;
    EXPECT_THAT(verification.hint, HasSubstr("Data ranks hold different sums")) << keys;
  }
}

TEST_F(Verifying, FindsATiedEmbeddingWhoseGradientsAreNotSummed) {
  for (const char* keys : {"grid.pipeline=8", "grid.pipeline=2 grid.tensor=2"}) {
    const Verification verification = Run(keys, Defect::kTiedGradientNotSummed);
    EXPECT_THAT(verification.failure, HasSubstr("in step 1 the gradient of embedding.token.weight"))
        << keys;
    EXPECT_THAT(verification.failure, testing::Not(HasSubstr("of the other"))) << keys;
    EXPECT_THAT(verification.hint, HasSubstr("model.tie_embeddings = no")) << keys;
  }
}

// Where a mistake can do nothing, nothing is reported.
TEST_F(Verifying, AMistakeWithoutEffectPasses) {
  EXPECT_EQ(Run("grid.tensor=4", Defect::kNormGradientNotSummed).failure, "");
  EXPECT_EQ(Run("grid.tensor=2 grid.pipeline=4", Defect::kAverageOfAverages).failure, "");
  EXPECT_EQ(Run("grid.tensor=8", Defect::kTiedGradientNotSummed).failure, "");
  EXPECT_EQ(Run("grid.pipeline=2 model.tie_embeddings=no", Defect::kTiedGradientNotSummed).failure,
            "");
}

// A single rank compares micro-batches and recomputation with a run that has neither.
TEST_F(Verifying, OneRankIsNotComparedWithItself) {
  const comm::Communicator alone = world_.Split(world_.Rank(), 0);
  const Large large = Read("model.recompute=full", 1);
  const comm::ProcessGrid grid(alone, large.grid);
  const std::string folder = folder_ / ("alone" + std::to_string(world_.Rank()));
  std::filesystem::create_directories(folder);
  const Verification verification =
      driver::Verify(grid, driver::Shrink(large.setup, large.grid), Dtype::kFloat32, folder);
  EXPECT_EQ(verification.failure, "");
  EXPECT_GT(verification.tensors.front().gradient, 0);
}

// A run that blows up is an error of its own, on all ranks.
TEST_F(Verifying, ARunThatCannotGoOnSaysWhich) {
  const Large large = Read("grid.data=8");
  const comm::ProcessGrid grid(world_, large.grid);
  TrainingSetup small = driver::Shrink(large.setup, large.grid);
  small.model.options.init_deviation = 1e300;
  try {
    driver::Verify(grid, small, Dtype::kFloat32, folder_.Path());
    FAIL() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("verify: the run on one rank cannot go on: step 1: "));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("-r")));
  }
}

bool HeadAlone(const model::Options& o, std::int64_t length, int stages) {
  const model::PartCosts costs = model::CostsPerToken(o, length);
  return parallel::BalanceStages(o.layers, stages, costs.block, costs.embedding, costs.head)
             .back()
             .Size() == 0;
}

// What is compared is small, suits the layout, and has the deck's remainders.
void ExpectShrunk(const driver::Job& job, const TrainingSetup& large, const TrainingSetup& small,
                  const comm::GridShape& grid) {
  const model::Options &from = large.model.options, &to = small.model.options;
  EXPECT_EQ(from.ffn % grid.tensor, to.ffn % grid.tensor);
  EXPECT_EQ(from.vocabulary % grid.tensor, to.vocabulary % grid.tensor);
  EXPECT_EQ(large.model.length % grid.tensor, small.model.length % grid.tensor);
  EXPECT_EQ(large.batch % grid.data, small.batch % grid.data);
  EXPECT_EQ(from.dim == from.heads * from.head_dim, to.dim == to.heads * to.head_dim);
  EXPECT_EQ(from.kv_heads % grid.tensor == 0, to.kv_heads % grid.tensor == 0);
  EXPECT_EQ(large.stride <=> large.model.length, small.stride <=> small.model.length);
  const int stages = grid.pipeline * large.pipeline.chunks;
  if (stages > 1) {
    EXPECT_EQ(from.layers % stages, to.layers % stages);
    EXPECT_EQ(HeadAlone(from, large.model.length, stages),
              HeadAlone(to, small.model.length, stages));
  }
  EXPECT_EQ(driver::MicroBatches(large.batch, grid.data, large.model.micro_batch) > 1,
            driver::MicroBatches(small.batch, grid.data, small.model.micro_batch) > 1);
  model::CheckLayout(job.deck, to, grid, small.pipeline);
  model::CheckMicroBatches(job.deck, small.pipeline, grid.data, CeilDivide(small.batch, grid.data),
                           small.model.micro_batch);
  EXPECT_LE(to.layers, std::max(2, 4 * stages));
  EXPECT_LE(to.dim, 66);
  EXPECT_LE(small.model.length, 10 + 2 * grid.tensor);
  EXPECT_LE(small.batch, 6 * grid.data * grid.pipeline);
  EXPECT_LE(to.vocabulary, 520);
}

TEST_F(Verifying, ShrinkingKeepsDivisibilities) {
  const std::vector<std::string> decks = {
      "", "data.batch=97 data.micro_batch=7 data.stride=100",
      "data.sequence_length=3 data.batch=5 data.stride=9 data.micro_batch=1 model.layers=5 "
      "model.ffn=4099 model.max_positions=3 model.dim=1000 model.head_dim=126",
      "model.heads=64 model.kv_heads=8 model.layers=31 model.dim=4097 model.head_dim=64"};
  for (const int tensor : {1, 2, 4, 8}) {
    for (const int pipeline : {1, 2, 3, 5}) {
      for (const int data : {1, 2, 3, 8}) {
        for (const std::string& more : decks) {
          std::string keys = fmt::format("grid.data={} grid.tensor={} grid.pipeline={} {}", data,
                                         tensor, pipeline, more);
          if (more.empty() && pipeline > 1) {
            keys +=
                "pipeline.schedule=interleaved pipeline.chunks=3 data.micro_batch=0 data.batch=480";
          }
          SCOPED_TRACE(keys);
          Large large = Read(keys, data * tensor * pipeline);
          for (const std::int64_t vocabulary : {101, 1000, 50257}) {
            large.setup.model.options.vocabulary = vocabulary;
            ExpectShrunk(large.job, large.setup, driver::Shrink(large.setup, large.grid),
                         large.grid);
          }
        }
      }
    }
  }
}

TEST_F(Verifying, WhatShrankIsSaid) {
  const Large large = Read("grid.tensor=8");
  const TrainingSetup small = driver::Shrink(large.setup, large.grid);
  const std::string text = driver::DescribeShrinking(large.setup, small, 8);
  EXPECT_THAT(text, HasSubstr("layers 24 -> 2, dim 1024 -> 32, "));
  EXPECT_THAT(text, HasSubstr(",\n        "));
  EXPECT_EQ(driver::DescribeShrinking(small, small, 8), "nothing");
}

// The runs are worth comparing: clipping acts, and the weights learn.
TEST_F(Verifying, TheSmallRunClipsAndHasAShortWindow) {
  const Large large = Read("grid.data=8");
  const TrainingSetup small = driver::Shrink(large.setup, large.grid);
  const data::TokenFile tokens(world_, driver::VerificationTokens(small));
  const comm::ProcessGrid grid(world_, large.grid);
  driver::Training training(grid, tokens, small);
  const std::int64_t whole = small.batch * small.model.length;
  EXPECT_EQ(training.Samples().StepsPerEpoch(), 2);
  EXPECT_LT(training.Samples().TargetsBefore(2), whole + (small.batch - 1) * small.model.length);
  EXPECT_GT(training.Run(0).gradient_norm, 2 * small.optimizer.clip_norm);
}

tensor::StateBlock Block(std::vector<double>& values, std::int64_t begin, std::int64_t size) {
  return {"t", {size}, Dtype::kFloat64, begin, begin + std::ssize(values), values.data(), 0, 1};
}

// A NaN, and a tensor that nobody holds all of, pass no tolerance.
TEST(VerifyCompare, WhatIsNoNumberIsInfinitelyFar) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(driver::RelativeDifference(kNan, 1), kInfinite);
  EXPECT_EQ(driver::RelativeDifference(1, kNan), kInfinite);
  EXPECT_EQ(driver::RelativeDifference(kNan, kNan), kInfinite);
  EXPECT_EQ(driver::RelativeDifference(kInfinite, 1), kInfinite);
  EXPECT_EQ(driver::RelativeDifference(0, 0), 0);
  EXPECT_DOUBLE_EQ(driver::RelativeDifference(1, 2), 0.5);

  const comm::Communicator world = World();
  const comm::ProcessGrid grid(world, {1, 1, 1, world.Size()});
  std::vector<double> whole(static_cast<std::size_t>(world.Size()), 2.0), mine = {2.0};
  const std::int64_t size = world.Size();
  const auto compare = [&] {
    return driver::Compare(grid, {Block(mine, world.Rank(), size)}, {Block(whole, 0, size)}).all[0];
  };
  EXPECT_EQ(compare(), 0);
  const bool last = world.Rank() == world.Size() - 1;
  mine[0] = last ? 3.0 : 2.0;
  EXPECT_DOUBLE_EQ(compare(), 1.0 / (2.0 * std::sqrt(static_cast<double>(size))));
  EXPECT_THAT(driver::WhereLargest(grid, last ? 1.0 : 0.0),
              fmt::format("rank {0} (pipeline 0, data 0, context 0, tensor {0})", size - 1));
  mine[0] = last ? kNan : 2.0;
  EXPECT_EQ(compare(), kInfinite);
  EXPECT_EQ(driver::CompareBits(grid, {Block(mine, 0, 1)}, {Block(mine, 0, 1)}).all[0], 0);
  mine[0] = 2.0;
  if (last) mine.clear();
  EXPECT_EQ(compare(), kInfinite);

  std::vector<double> zero = {0.0}, minus = {-0.0};
  EXPECT_GT(driver::CompareBits(grid, {Block(zero, 0, 1)}, {Block(minus, 0, 1)}).all[0], 0);
}

TEST(VerifyCompare, TheTableSaysWhatFails) {
  Verification verification;
  verification.tolerance = 1e-11;
  verification.quantities = {{"loss, fp64", 2e-3, 1e-11}, {"stop, resume", 0, 0}};
  for (int i = 0; i < 12; ++i) verification.tensors.push_back({"t" + std::to_string(i), 1e-16, 0});
  verification.tensors[11].weights = std::numeric_limits<double>::infinity();
  const std::string table = driver::Describe(verification);
  EXPECT_THAT(table, testing::ContainsRegex("loss, fp64 +2.0e-03 +1e-11  FAIL\n"));
  EXPECT_THAT(table, testing::ContainsRegex("stop, resume +0 +same bits  ok\n"));
  EXPECT_THAT(table, testing::ContainsRegex("t11 +1.0e-16 not finite +1e-11  FAIL\n"));
  EXPECT_THAT(table, HasSubstr("2 more, none above 1.0e-16\n"));
}

TEST(VerifyCompare, AFailureIsOneErrorWithExitCodeOne) {
  const comm::Communicator world = World();
  Verification verification;
  EXPECT_NO_THROW(driver::Judge(verification, world, 1));
  verification.failure = "in step 1 the loss differs";
  verification.hint = "Suspect this.";
  try {
    driver::Judge(verification, world, 1);
    FAIL() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_STREQ(error.what(), "verify: in step 1 the loss differs\n  Suspect this.");
  }
}

}  // namespace
}  // namespace trireme::test
