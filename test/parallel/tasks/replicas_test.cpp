// Runs that go wrong: replicas that differ, bad steps, stops, stragglers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "defects.hpp"
#include "listening_libraries.hpp"
#include "reporter.hpp"
#include "small_run.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/replica_check.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::test {
namespace {

using train::Corruption;
using train::ReplicaCheck;

// Copies that must be equal: a flipped bit is found and its rank named in every kind of layout, and
// nothing is found where nothing differs; processors of different kinds.

constexpr const char* kReplicasModel =
    "[model]\nheads=4\nkv_heads=4\nhead_dim=3\ndim=12\nlayers=4\nffn=17\nmax_positions=7\n"
    "dropout=0.1\ninit_deviation=0.2\n";
// Copies of key/value heads, on tensor ranks whose feed-forward slices differ in size.
constexpr const char* kUneven =
    "[model]\nheads=4\nkv_heads=1\nhead_dim=4\ndim=13\nlayers=4\nffn=19\nnorm=rmsnorm\n"
    "activation=swiglu\nposition=rope\nbias=no\ndropout=0.1\n";

struct ReplicasLayout {
  const char* model;
  const char* grid;
};
// On eight ranks; the model's table is tied.
constexpr std::array kReplicasLayouts = {
    ReplicasLayout{kReplicasModel, "data=2\ntensor=2\npipeline=2\n"},
    ReplicasLayout{kReplicasModel, "data=4\npipeline=2\n"},
    ReplicasLayout{kReplicasModel, "data=8\nsharding=optimizer\n"},
    ReplicasLayout{kReplicasModel, "data=4\npipeline=2\nsharding=parameters\nshard_group=2\n"},
    ReplicasLayout{kReplicasModel, "data=6\nsharding=parameters\nshard_group=2\n"},
    ReplicasLayout{kUneven, "data=2\ntensor=4\nsequence_parallel=yes\nsharding=parameters\n"},
    ReplicasLayout{kUneven, "data=4\ntensor=2\nsharding=gradients\nshard_group=2\n"},
    // Only some parameters have a second moment.
    ReplicasLayout{kUneven, "data=2\ntensor=4\n[optimizer]\nkind=muon\naverage=0.9\n"}};

std::string ReplicasDeckOf(const ReplicasLayout& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nbatch=10\nsequence_length=7\nmicro_batch=2\n[schedule]\nsteps=20\n"
      "{}[grid]\nbucket_mib=0.001\n{}",
      layout.model, layout.grid);
}

std::vector<std::string> Hosts(int ranks) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(fmt::format("h{}", rank));
  return hosts;
}

class ReplicasTest : public LayoutTest {
 protected:
  // The blocks that `state` compares: values, then moments.
  static std::vector<kernels::StateBlock> Blocks(train::TrainingState& state) {
    const checkpoint::State all = state.ReplicatedState();
    std::vector<kernels::StateBlock> blocks = all.model;
    blocks.insert(blocks.end(), all.optimizer.begin(), all.optimizer.end());
    return blocks;
  }
  // Ranks that hold an element of a block.
  static std::vector<int> HoldersOf(const comm::Communicator& group,
                                    const kernels::StateBlock& block, std::int64_t element) {
    const bool mine = block.begin <= element && element < block.end;
    const std::vector<std::string> all = group.Gather(mine ? "y" : "n");
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] == "y") ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
  static void FlipLastBit(const kernels::StateBlock& block, std::int64_t element) {
    auto* const bytes = static_cast<unsigned char*>(block.data);
    bytes[static_cast<std::size_t>(element - block.begin) * SizeOf(block.dtype)] ^= 1;
  }

  // Flips a bit of the element in the middle of a block's tensor on one of its holders, and back.
  void ExpectFound(const comm::Communicator& group, TrainingRun& run, ReplicaCheck& check,
                   std::size_t which, std::size_t holder) {
    const kernels::StateBlock block = Blocks(run.All()).at(which);
    const std::int64_t element = kernels::ElementCount(block.shape) / 2;
    const std::vector<int> holders = HoldersOf(group, block, element);
    if (holders.size() < 2) return;
    const int culprit = holders[holder % holders.size()];
    const bool here = group.Rank() == culprit;
    SCOPED_TRACE(fmt::format("{} on rank {}", block.name, culprit));
    if (here) FlipLastBit(block, element);
    const std::vector<Corruption> found = check.Look();
    if (here) FlipLastBit(block, element);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].tensor, block.name);
    EXPECT_LE(found[0].elements.begin, element);
    EXPECT_GT(found[0].elements.end, element);
    EXPECT_EQ(found[0].holders, holders);
    EXPECT_EQ(found[0].certain, holders.size() > 2);
    EXPECT_EQ(found[0].wrong, holders.size() > 2 ? std::vector<int>{culprit} : holders);
    ++seen_;
  }

  int seen_ = 0;
};

TEST_F(ReplicasTest, AFlippedBitIsFoundAndItsRankNamed) {
  for (const ReplicasLayout& layout : kReplicasLayouts) {
    const std::string grid = layout.grid;
    const int ranks = grid.find("data=6") == std::string::npos ? 8 : 6;
    const comm::Communicator group = world_.Split(world_.Rank() < ranks ? 0 : 1, world_.Rank());
    if (world_.Rank() >= ranks) continue;
    SCOPED_TRACE(grid);
    TrainingRun run(group, tokens_,
                    SettingsOf(ReplicasDeckOf(layout), tokens_, ranks, Dtype::kFloat32));
    ReplicaCheck check(run.All());
    ASSERT_TRUE(check.Active());
    EXPECT_THAT(check.Look(), testing::IsEmpty());
    run.Train(2);
    EXPECT_THAT(check.Look(), testing::IsEmpty());
    seen_ = 0;
    const std::size_t count = Blocks(run.All()).size();
    // Every third tensor of weights and moments, on each holder in turn.
    for (std::size_t which = 0; which < count; which += 3) {
      ExpectFound(group, run, check, which, which / 3);
    }
    EXPECT_GT(seen_, 5);
    EXPECT_THAT(check.Look(), testing::IsEmpty());
  }
}

TEST_F(ReplicasTest, PartsTakeTurns) {
  constexpr std::int64_t kParts = 4;
  TrainingRun run(
      world_, tokens_,
      SettingsOf(ReplicasDeckOf(kReplicasLayouts[0]), tokens_, world_.Size(), Dtype::kFloat32));
  ReplicaCheck check(run.All());
  const std::vector<kernels::StateBlock> blocks = Blocks(run.All());
  for (std::size_t which = 0; which < 8; ++which) {
    const std::vector<int> holders = HoldersOf(world_, blocks[which], 0);
    const bool here = world_.Rank() == holders.back();
    if (here) FlipLastBit(blocks[which], 0);
    int found = 0;
    for (std::int64_t part = 0; part < kParts; ++part) {
      found += check.Look(part, kParts).empty() ? 0 : 1;
    }
    if (here) FlipLastBit(blocks[which], 0);
    EXPECT_EQ(found, 1) << blocks[which].name;
  }
}

TEST_F(ReplicasTest, NothingIsComparedWithoutCopies) {
  TrainingRun run(
      world_, tokens_,
      SettingsOf(ReplicasDeckOf({kReplicasModel, "pipeline=1\ndata=8\nsharding=parameters\n"}),
                 tokens_, world_.Size(), Dtype::kFloat32));
  ReplicaCheck check(run.All());
  EXPECT_FALSE(check.Active());
  EXPECT_THAT(check.Look(), testing::IsEmpty());
}

TEST(Describe, SaysWhoAndWhat) {
  const comm::Hosts hosts(Hosts(8));
  Corruption one{.tensor = "head.weight", .elements = {0, 8}, .wrong = {3}, .holders = {1, 3, 5}};
  EXPECT_EQ(train::Describe(one, hosts),
            "rank 3 on h3 holds other bits of head.weight than ranks 1, 5 of 8, which agree");
  Corruption two{.tensor = "norm.bias",
                 .elements = {0, 8},
                 .wrong = {2, 6},
                 .holders = {2, 6},
                 .certain = false};
  EXPECT_EQ(train::Describe(two, hosts),
            "rank 2 on h2 and rank 6 on h6 differ in norm.bias; with two copies it cannot be told "
            "which one is wrong");
}

class ProcessorsTest : public ReplicasTest {
 protected:
  ProcessorsTest()
      : grid_(world_, {.pipeline = 2, .data = 2, .context = 1, .tensor = 2}),
        hosts_(Hosts(world_.Size())) {}
  std::string Check(const std::string& kind, std::uint64_t bits) {
    return train::CheckProcessors(
        grid_, kind, [bits] { return bits; }, hosts_);
  }
  std::string Refusal(const std::string& kind, std::uint64_t bits) {
    try {
      Check(kind, bits);
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
    return {};
  }
  comm::ProcessGrid grid_;
  comm::Hosts hosts_;
};

TEST_F(ProcessorsTest, DataRanksOfTwoKindsAreAWarningIfTheyUpdateAlike) {
  const std::string kind = grid_.Coordinates().data == 1 ? "AVX2" : "AVX-512";
  EXPECT_THAT(Check(kind, 7), testing::HasSubstr("rank 0 on h0 has AVX-512, but rank 2 on h2 has "
                                                 "AVX2"));
  EXPECT_EQ(Check("AVX2", 7), "");
}

TEST_F(ProcessorsTest, RanksWhoseCopiesWouldDriftAreRefused) {
  const comm::GridShape at = grid_.Coordinates();
  EXPECT_THAT(Refusal(at.data == 1 ? "AVX2" : "AVX-512", static_cast<std::uint64_t>(at.data)),
              testing::HasSubstr("the same update has other bits on rank 2 than on rank 0"));
  EXPECT_THAT(Refusal(at.tensor == 1 ? "AVX2" : "AVX-512", 7),
              testing::HasSubstr("rank 0 on h0 has AVX-512, but rank 1 on h1 has AVX2"));
}

TEST_F(ProcessorsTest, StagesMayDiffer) {
  EXPECT_EQ(Check(grid_.FirstStage() ? "AVX2" : "AVX-512", 7), "");
}

TEST_F(ProcessorsTest, UpdateBitsAreTheSameOnEveryRankAndThoseOfTheRule) {
  const auto bits_of = [this](const std::string& optimizer) {
    TrainingRun run(world_, tokens_,
                    SettingsOf(ReplicasDeckOf(kReplicasLayouts[0]) + optimizer, tokens_,
                               world_.Size(), Dtype::kFloat32));
    return train::UpdateBits(run.All());
  };
  const std::uint64_t bits = bits_of("");
  EXPECT_EQ(bits, bits_of(""));
  for (const std::string& other : world_.Gather(std::to_string(bits))) {
    EXPECT_EQ(other, std::to_string(bits));
  }
  EXPECT_NE(bits, bits_of("[optimizer]\nbeta1=0.8\n"));
}

// Steps with a value that is not finite, in every kind of layout: all ranks leave the update out
// together, the next steps are those of the serial run that left out the same one, and rank, tensor
// and layer are named.

constexpr int kBadStepsRanks = 2;
constexpr int kGuilty = 1;                              // rank
constexpr std::int64_t kSpoiled = 2, kBadStepsEnd = 6;  // steps, from 0
constexpr double kBadStepsFp64 = 1e-11;  // relative, losses; weights in rule 4's norm
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct BadStepsLayout {
  const char* name;
  comm::GridShape grid;
  comm::Sharding sharding;
  comm::Group spoiled;  // group of the transfers that a test spoils
};
const comm::GridShape kData{.pipeline = 1, .data = kBadStepsRanks, .context = 1, .tensor = 1};
const std::vector<BadStepsLayout> kBadStepsLayouts = {
    {"data", kData, comm::Sharding::kNone, comm::Group::kData},
    {"ZeRO-1", kData, comm::Sharding::kOptimizer, comm::Group::kShard},
    {"ZeRO-3", kData, comm::Sharding::kParameters, comm::Group::kShard},
    {"tensor", {1, 1, 1, kBadStepsRanks}, comm::Sharding::kNone, comm::Group::kTensor},
    {"pipeline", {kBadStepsRanks, 1, 1, 1}, comm::Sharding::kNone, comm::Group::kPipeline},
    {"context", {1, 1, kBadStepsRanks, 1}, comm::Sharding::kNone, comm::Group::kContext}};

// The first transfer that arrives while *armed holds is spoiled.
class NanChannel final : public ForwardingChannel {
 public:
  NanChannel(const comm::Collectives& plain, std::shared_ptr<bool> armed)
      : ForwardingChannel(plain), armed_(std::move(armed)) {}

 protected:
  void After(const comm::Operation& o, std::int64_t arrived) override {
    if (!*armed_ || arrived == 0) return;
    *armed_ = false;
    DispatchDtype(o.dtype, [&](auto zero) {
      std::fill_n(static_cast<decltype(zero)*>(o.to), arrived, static_cast<decltype(zero)>(kNan));
    });
  }

 private:
  std::shared_ptr<bool> armed_;
};

// A run with a channel of its own in front of one group.
class SpoiledRun {
 public:
  SpoiledRun(const comm::Communicator& group, const data::TokenFile& tokens,
             const RunSettings& settings, comm::Group spoiled = comm::Group::kWorld)
      : grid_(group, *settings.grid, settings.options),
        state_(Armed(spoiled),
               train::PlanTraining(settings, tokens.Size(data::Split::kTrain), grid_.Shape()), {}),
        step_(state_, tokens),
        group_(group) {}

  // Losses up to kBadStepsEnd; in step kSpoiled something is spoiled on this rank, if it is guilty,
  // while the step runs.
  std::vector<double> Train(bool guilty, bool transfer) {
    std::vector<double> losses;
    for (std::int64_t step = 0; step < kBadStepsEnd; ++step) {
      if (step == kSpoiled && transfer) *armed_ = guilty;
      double* const value = step == kSpoiled && !transfer && guilty ? Victim() : nullptr;
      const double kept = value == nullptr ? 0 : std::exchange(*value, kNan);
      const auto result = step_.Run(step, {}, train::OnFault::kSkip);
      if (value != nullptr) *value = kept;
      EXPECT_EQ(result.fault.has_value(), step == kSpoiled) << step;
      EXPECT_EQ(std::isnan(result.loss), step == kSpoiled);
      EXPECT_EQ(std::isnan(result.gradient_norm), step == kSpoiled);
      EXPECT_GT(result.learning_rate, 0);
      losses.push_back(result.loss);
      if (result.fault) fault_ = *result.fault;
    }
    return losses;
  }
  // Name of the parameter that was spoiled on this rank.
  const std::string& Name() const { return name_; }
  const train::Fault& Fault() const { return fault_; }
  bool Spent() const { return !*armed_; }
  Tensors Weights() { return WholeTensors(group_, state_.Net().Blocks()); }

 private:
  const comm::ProcessGrid& Armed(comm::Group spoiled) {
    if (spoiled == comm::Group::kWorld) return grid_;
    grid_.Decorate(spoiled, [this](const comm::Collectives& plain) {
      return std::make_unique<NanChannel>(plain, armed_);
    });
    return grid_;
  }
  // An element of the last block's first parameter that this rank holds.
  double* Victim() {
    for (const kernels::StateBlock& block : state_.Net().Blocks()) {
      if (!block.name.starts_with("blocks.1.") || block.begin == block.end) continue;
      name_ = block.name;
      return static_cast<double*>(block.data);
    }
    ADD_FAILURE() << "this rank holds nothing of the last block";
    return nullptr;
  }

  const std::shared_ptr<bool> armed_ = std::make_shared<bool>(false);
  comm::ProcessGrid grid_;
  train::TrainingState state_;
  train::TrainingStep step_;
  const comm::Communicator& group_;
  std::string name_;
  train::Fault fault_;
};

class BadSteps : public LayoutTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override { ASSERT_EQ(world_.Size(), kBadStepsRanks); }
  RunSettings SettingsOf(const BadStepsLayout& layout) const {
    RunSettings settings = SmallSettings(Dtype::kFloat64, 2);
    settings.grid = layout.grid;
    settings.options.sharding = layout.sharding;
    settings.model.options.kv_heads = 3;
    settings.keep_gradients = GetParam();
    return settings;
  }
  // The serial run that leaves out the same step.
  SpoiledRun Serial() {
    return {self_, tokens_, SettingsOf({"serial", {1, 1, 1, 1}, comm::Sharding::kNone, {}})};
  }
  void Compare(SpoiledRun& run, const std::vector<double>& losses, SpoiledRun& serial,
               const std::vector<double>& wanted, const char* name) {
    for (std::int64_t step = 0; step < kBadStepsEnd; ++step) {
      if (step == kSpoiled) continue;
      const auto i = static_cast<std::size_t>(step);
      EXPECT_NEAR(losses[i] / wanted[i], 1, kBadStepsFp64) << name << ", step " << step;
    }
    EXPECT_LT(RuleFourDifference(run.Weights(), serial.Weights()).relative, kBadStepsFp64) << name;
  }
};

TEST_P(BadSteps, AParameterOfOneRankIsNamedAndNothingLeaks) {
  SpoiledRun serial = Serial();
  const std::vector<double> wanted = serial.Train(true, false);
  for (const BadStepsLayout& layout : kBadStepsLayouts) {
    SpoiledRun run(world_, tokens_, SettingsOf(layout));
    const std::vector<double> losses = run.Train(world_.Rank() == kGuilty, false);
    Compare(run, losses, serial, wanted, layout.name);
    const std::string name = world_.Broadcast(run.Name(), kGuilty);
    EXPECT_EQ(run.Fault().rank, kGuilty) << layout.name;
    const std::string text = run.Fault().Text("node07");
    EXPECT_THAT(text, testing::HasSubstr("not finite on rank 1 (node07)")) << layout.name;
    EXPECT_THAT(text, testing::HasSubstr("nor is the parameter " + name + " (layer 2 of 2)"));
  }
}

TEST_P(BadSteps, ATransferThatArrivesSpoiledOnOneRankIsLeftOutByAll) {
  SpoiledRun serial = Serial();
  const std::vector<double> wanted = serial.Train(true, false);
  for (const BadStepsLayout& layout : kBadStepsLayouts) {
    SpoiledRun run(world_, tokens_, SettingsOf(layout), layout.spoiled);
    const std::vector<double> losses = run.Train(world_.Rank() == kGuilty, true);
    EXPECT_TRUE(run.Spent()) << layout.name << ": no transfer was spoiled";
    Compare(run, losses, serial, wanted, layout.name);
    EXPECT_THAT(run.Fault().Text(), testing::HasSubstr("is not finite")) << layout.name;
  }
}

TEST_P(BadSteps, TheSameStepLeftOutGivesTheSameBits) {
  for (const BadStepsLayout& layout : kBadStepsLayouts) {
    std::vector<std::vector<double>> losses;
    std::vector<Tensors> weights;
    for (int time = 0; time < 2; ++time) {
      SpoiledRun run(world_, tokens_, SettingsOf(layout), layout.spoiled);
      losses.push_back(run.Train(world_.Rank() == kGuilty, true));
      losses.back()[kSpoiled] = 0;  // not a number
      weights.push_back(run.Weights());
    }
    EXPECT_EQ(losses[0], losses[1]) << layout.name;
    EXPECT_EQ(weights[0], weights[1]) << layout.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Gradients, BadSteps, testing::Bool(), [](const auto& info) {
  return info.param ? "Kept" : "ClearedByTheUpdate";
});

// Requests to stop in an evaluation and in the construction of a model: all ranks are asked equally
// often, all stop together, and a question that is answered with no changes no bit.

constexpr int kStopsRanks = 4;

// 98 windows: of four data ranks two take 25, in rounds of 8, and two 24, a round less.
data::TokenData UnevenTokens() {
  data::TokenData data = ManyTokens();
  data.tokens[0].resize(98 * kLength - 2);
  return data;
}

struct StopsLayout {
  comm::GridShape grid;
  comm::Sharding sharding = comm::Sharding::kNone;
};
const std::vector<StopsLayout> kStopsLayouts = {
    {{.pipeline = 1, .data = 4, .context = 1, .tensor = 1}},
    {{.pipeline = 1, .data = 4, .context = 1, .tensor = 1}, comm::Sharding::kParameters},
    {{.pipeline = 2, .data = 2, .context = 1, .tensor = 1}},
    {{.pipeline = 1, .data = 2, .context = 2, .tensor = 1}}};

RunSettings StopsSettingsOf(const StopsLayout& layout) {
  RunSettings settings = SmallSettings(Dtype::kFloat32, 1);
  settings.grid = layout.grid;
  settings.options.sharding = layout.sharding;
  return settings;
}

class Stops : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(world_.Size(), kStopsRanks); }
  // `count` is the same on all ranks.
  void ExpectSame(std::int64_t count) const {
    EXPECT_EQ(world_.Max(count), world_.Min(count)) << "rank " << world_.Rank();
  }
  const comm::Communicator world_ = World();
  const data::TokenFile tokens_{world_, UnevenTokens()};
};

TEST_F(Stops, AQuestionChangesNoBitOfAnEvaluation) {
  for (const StopsLayout& layout : kStopsLayouts) {
    TrainingRun run(world_, tokens_, StopsSettingsOf(layout));
    const auto wanted = train::Evaluate(run.Net(), tokens_, data::Split::kTrain);
    EXPECT_FALSE(wanted.stopped);
    std::int64_t asked = 0;
    const auto got = train::Evaluate(run.Net(), tokens_, data::Split::kTrain, {.stop = [&] {
                                       ++asked;
                                       return false;
                                     }});
    EXPECT_GT(asked, 2);
    ExpectSame(asked);
    EXPECT_FALSE(got.stopped);
    EXPECT_EQ(got.loss, wanted.loss);
    EXPECT_EQ(got.targets, tokens_.Size(data::Split::kTrain) - 1);
  }
}

TEST_F(Stops, OneRanksWishStopsTheEvaluationOfAll) {
  for (const StopsLayout& layout : kStopsLayouts) {
    TrainingRun run(world_, tokens_, StopsSettingsOf(layout));
    const auto whole = train::Evaluate(run.Net(), tokens_, data::Split::kTrain);
    std::int64_t asked = 0;
    const auto got = train::Evaluate(run.Net(), tokens_, data::Split::kTrain,
                                     {.stop = [&] { return ++asked == 2 && world_.Rank() == 2; }});
    EXPECT_EQ(asked, 2);
    EXPECT_TRUE(got.stopped);
    EXPECT_TRUE(std::isnan(got.loss));
    EXPECT_EQ(got.targets, 0);
    // No rest of the stopped evaluation is left over.
    EXPECT_EQ(train::Evaluate(run.Net(), tokens_, data::Split::kTrain).loss, whole.loss);
  }
}

TEST_F(Stops, AllRanksPauseEquallyOftenInTheConstruction) {
  for (const StopsLayout& layout : kStopsLayouts) {
    const RunSettings settings = StopsSettingsOf(layout);
    const comm::ProcessGrid grid(world_, layout.grid, settings.options);
    const auto plan =
        train::PlanTraining(settings, tokens_.Size(data::Split::kTrain), grid.Shape());
    std::int64_t pauses = 0;
    {
      const train::TrainingState state(grid, plan, {}, [&] { ++pauses; });
    }
    EXPECT_GT(pauses, 2);
    ExpectSame(pauses);
    std::int64_t before = 0;
    const auto stop = [&] {
      if (++before == 2) throw AgreedError(ExitCode::kStopped, "stopped");
    };
    EXPECT_THROW(const train::TrainingState state(grid, plan, {}, stop), AgreedError);
    EXPECT_EQ(before, 2);
  }
}

// Ranks agree on the algorithms of their matrix products, each list of products sent once.

// Choice of algorithm `algorithm` for each product.
std::string Chosen(const std::vector<std::string>& products, int algorithm,
                   const std::string& card = "a card") {
  std::string list;
  for (const std::string& product : products) {
    list += (list.empty() ? "" : ", ") + std::string(R"({"product": ")") + product +
            R"(", "algorithm": )" + std::to_string(algorithm) + "}";
  }
  return R"({"card": ")" + card + R"(", "library": "a library", "products": [)" + list + "]}";
}

class ProductAgreement : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(world_.Size(), 4); }
  int Rank() const { return world_.Rank(); }
  // Texts that this rank adopts, if its own is `own`.
  std::vector<std::string> Adopted(const std::string& own) const {
    Listening libraries(own);
    train::AgreeOnChoices(world_, libraries);
    EXPECT_EQ(libraries.Adopted().size(), 1);
    return libraries.Adopted().at(0);
  }
  const comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
};

using Texts = std::vector<std::string>;

TEST_F(ProductAgreement, RanksWithTheSameProductsSendTheirsOnce) {
  // Two stages of a pipeline with two replicas each, timed apart.
  const Texts products = Rank() % 2 == 0 ? Texts{"q", "p"} : Texts{"p", "head"};
  const Texts want = {Chosen({"q", "p"}, 0), Chosen({"p", "head"}, 1)};
  EXPECT_EQ(Adopted(Chosen(products, Rank())), want);
}

TEST_F(ProductAgreement, CardsOfOtherKindsAreHeard) {
  const auto of = [](int rank) { return Chosen({"p"}, rank, rank == 2 ? "another" : "a card"); };
  EXPECT_EQ(Adopted(of(Rank())), (Texts{of(0), of(2)}));
}

TEST_F(ProductAgreement, NoProductsAreNoHindrance) {
  const Texts products = Rank() == 3 ? Texts{"p"} : Texts{};
  EXPECT_EQ(Adopted(Chosen(products, 7)), (Texts{Chosen({}, 7), Chosen({"p"}, 7)}));
}

}  // namespace
}  // namespace trireme::test

namespace trireme::tasks {
namespace {

// The slowest rank is found among those that have the same to compute, and all ranks agree on it.

class Stragglers : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(world_.Size(), 4); }
  // seconds: of each rank's computation.
  Slowest Find(const comm::GridShape& shape, const std::vector<double>& seconds) const {
    const comm::ProcessGrid grid(world_, shape);
    const Slowest slowest = SlowestRank(grid, seconds[static_cast<std::size_t>(world_.Rank())]);
    EXPECT_EQ(world_.Min(std::int64_t{slowest.rank}), world_.Max(std::int64_t{slowest.rank}));
    EXPECT_EQ(-world_.Max(-slowest.seconds), world_.Max(slowest.seconds));
    EXPECT_EQ(-world_.Max(-slowest.mean), world_.Max(slowest.mean));
    return slowest;
  }

  const comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
};

TEST_F(Stragglers, IsTheRankFarthestAboveTheMean) {
  const Slowest slowest = Find({.pipeline = 1, .data = 4, .context = 1, .tensor = 1}, {1, 1, 3, 1});
  EXPECT_EQ(slowest.rank, 2);
  EXPECT_EQ(slowest.seconds, 3);
  EXPECT_EQ(slowest.mean, 1.5);
}

// Ranks 0 and 1 hold the first stage, which has more to compute.
TEST_F(Stragglers, AreComparedWithinTheirStage) {
  const Slowest slowest = Find({.pipeline = 2, .data = 2, .context = 1, .tensor = 1}, {8, 8, 1, 2});
  EXPECT_EQ(slowest.rank, 3);
  EXPECT_EQ(slowest.seconds, 2);
  EXPECT_EQ(slowest.mean, 1.5);
}

TEST_F(Stragglers, OfEqualOnesTheLowestIsNamed) {
  const Slowest slowest = Find({.pipeline = 1, .data = 4, .context = 1, .tensor = 1}, {0, 0, 0, 0});
  EXPECT_EQ(slowest.rank, 0);
  EXPECT_EQ(slowest.seconds, 0);
}

}  // namespace
}  // namespace trireme::tasks
