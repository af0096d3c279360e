// Copies that must be equal: a flipped bit is found and its rank named in every kind of layout, and
// nothing is found where nothing differs; processors of different kinds.
#include "trireme/train/replica_check.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "layout_fixture.hpp"

namespace trireme::test {
namespace {

using train::Corruption;
using train::ReplicaCheck;

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
    ReplicasLayout{kUneven, "data=4\ntensor=2\nsharding=gradients\nshard_group=2\n"}};

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

}  // namespace
}  // namespace trireme::test
