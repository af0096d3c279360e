// Speeds that others have published, from one description per machine (doc/plan.md has the sources
// and the assumptions).
#include <gtest/gtest.h>

#include "cases.hpp"
#include "trireme/predict/search.hpp"

namespace trireme::predict {
namespace {

using test::Case;
using Keys = std::vector<std::string>;

constexpr double kAllowed = 0.15;

double TokensPerRank(const std::string& machine, int ranks, Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  const Case one(machine, ranks, keys);
  return Predict(one.plan, one.machine).tokens_per_second / ranks;
}

Keys Foundry(const char* dim, const char* ffn, const char* layers, const char* heads) {
  return {std::string("model.dim=") + dim,
          std::string("model.ffn=") + ffn,
          std::string("model.layers=") + layers,
          std::string("model.heads=") + heads,
          "model.position=rope",
          "model.bias=no",
          "plan.vocabulary=50432",
          "data.sequence_length=2048",
          "grid.sharding=parameters",
          "run.precision=bf16"};
}

TEST(Published, LlmFoundryOnH100) {
  const Keys large = Foundry("8192", "32768", "80", "64"),
             small = Foundry("4096", "16384", "32", "32");
  struct Point {
    int ranks;
    double large, small;
  };
  for (const Point& point :
       {Point{128, 1058, 10475}, Point{256, 1035, 10119}, Point{512, 1007, 9670}}) {
    const double of_large = TokensPerRank("h100", point.ranks, large,
                                          {"data.batch=" + std::to_string(8 * point.ranks),
                                           "data.micro_batch=8", "model.recompute=full"});
    const double of_small =
        TokensPerRank("h100", point.ranks, small,
                      {"data.batch=" + std::to_string(6 * point.ranks), "data.micro_batch=6"});
    EXPECT_NEAR(of_large / point.large, 1, kAllowed) << "70B on " << point.ranks;
    EXPECT_NEAR(of_small / point.small, 1, kAllowed) << "7B on " << point.ranks;
  }
}

TEST(Published, TorchtitanOnH100At500W) {
  const Keys model = {"model.preset=llama3_8b",    "plan.vocabulary=128256",
                      "data.sequence_length=8192", "grid.sharding=parameters",
                      "data.micro_batch=2",        "model.recompute=selective"};
  struct Point {
    int ranks;
    double bf16, fp8;
  };
  for (const Point& point : {Point{8, 6667, 8532}, Point{128, 6514, 8380}}) {
    const std::string batch = "data.batch=" + std::to_string(2 * point.ranks);
    EXPECT_NEAR(
        TokensPerRank("h100_500w", point.ranks, model, {batch, "run.precision=bf16"}) / point.bf16,
        1, kAllowed);
    EXPECT_NEAR(
        TokensPerRank("h100_500w", point.ranks, model, {batch, "run.precision=fp8"}) / point.fp8, 1,
        kAllowed);
  }
}

TEST(Published, TorchtitanWith405Billion) {
  const Keys model = {
      "model.preset=llama3_70b", "model.dim=16384",        "model.layers=126",
      "model.heads=128",         "model.kv_heads=8",       "model.head_dim=128",
      "model.ffn=53248",         "plan.vocabulary=128256", "data.sequence_length=8192",
      "grid.tensor=8",           "grid.pipeline=8",        "grid.sequence_parallel=yes",
      "grid.sharding=gradients", "data.batch=256",         "data.micro_batch=1",
      "model.recompute=full",    "run.precision=fp8"};
  EXPECT_NEAR(TokensPerRank("h100_500w", 512, model, {}) / 100, 1, kAllowed);
  EXPECT_NEAR(TokensPerRank("h100_500w", 512, model,
                            {"pipeline.schedule=interleaved", "pipeline.chunks=2"}) /
                  128,
              1, kAllowed);
}

// Megatron's selective recomputation repeats attention's scores, which the backward pass of
// attention does here in any case (doc/plan.md).
TEST(Published, MegatronWithGpt3) {
  const Keys model = {
      "model.dim=12288",    "model.layers=96",         "model.heads=96",
      "model.ffn=49152",    "model.position=rope",     "plan.vocabulary=51200",
      "data.batch=1152",    "data.micro_batch=1",      "data.sequence_length=2048",
      "grid.tensor=8",      "grid.sharding=optimizer", "grid.sequence_parallel=yes",
      "run.precision=bf16", "model.recompute=none",    "pipeline.schedule=interleaved"};
  Keys few = model, many = model;
  few.insert(few.end(), {"grid.pipeline=6", "pipeline.chunks=16"});
  many.insert(many.end(), {"grid.pipeline=16", "pipeline.chunks=6"});
  const Case small("h100", 96, few), large("h100", 4608, many);
  EXPECT_NEAR(Predict(small.plan, small.machine).utilisation / 0.47, 1, kAllowed);
  EXPECT_NEAR(Predict(large.plan, large.machine).utilisation / 0.42, 1, kAllowed);
}

// A plan for 100,000 ranks takes no more than one for a few.
TEST(Prediction, HundredThousandRanks) {
  const Case one(
      "h100", 100000,
      {"model.preset=llama3_70b", "plan.vocabulary=128256", "data.sequence_length=8192",
       "grid.tensor=8", "grid.pipeline=4", "grid.sequence_parallel=yes", "grid.sharding=optimizer",
       "data.batch=12500", "data.micro_batch=1", "run.precision=bf16"});
  const Prediction prediction = Predict(one.plan, one.machine);
  EXPECT_GT(prediction.utilisation, 0.05);
  EXPECT_LT(prediction.utilisation, 0.6);
}

}  // namespace
}  // namespace trireme::predict
