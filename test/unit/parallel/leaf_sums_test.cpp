// Canonical sums, and transfers too long for one call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {
namespace {

// LeafSums and TreeSum: which sums are formed, written out as text and as bits.

// Levels that hold sums as text; empty: zero.
class Levels {
 public:
  explicit Levels(int count) : sums_(static_cast<std::size_t>(count)) {}
  void Add(int level, const std::string& leaf) { Append(At(level), leaf); }
  auto Merge() {
    return [this](int from, int to) {
      std::string& target = At(to);
      target = target.empty() ? At(from) : "(" + target + " " + At(from) + ")";
      At(from).clear();
    };
  }
  std::string& At(int level) { return sums_.at(static_cast<std::size_t>(level)); }
  bool OnlyZero() {
    for (std::size_t i = 1; i < sums_.size(); ++i) {
      if (!sums_[i].empty()) return false;
    }
    return true;
  }

 private:
  static void Append(std::string& sum, const std::string& leaf) {
    sum += sum.empty() ? leaf : "+" + leaf;
  }
  std::vector<std::string> sums_;
};

std::string SumOf(std::int64_t groups, std::int64_t present, int leaves) {
  Levels levels(LeafSums::Levels(groups));
  LeafSums sums;
  for (std::int64_t group = 0; group < present; ++group) {
    for (int leaf = 0; leaf < leaves; ++leaf) {
      const int level = sums.Enter(group, levels.Merge());
      levels.Add(level, std::to_string(group) + std::string(static_cast<std::size_t>(leaf), '\''));
    }
  }
  sums.Finish(levels.Merge());
  EXPECT_TRUE(levels.OnlyZero());
  return levels.At(0);
}

TEST(LeafSums, GroupsMeetInThePerfectTree) {
  EXPECT_EQ(SumOf(1, 1, 1), "0");
  EXPECT_EQ(SumOf(2, 2, 1), "(0 1)");
  EXPECT_EQ(SumOf(4, 4, 1), "((0 1) (2 3))");
  EXPECT_EQ(SumOf(8, 8, 1), "(((0 1) (2 3)) ((4 5) (6 7)))");
}

TEST(LeafSums, LeavesOfAGroupAreAddedInTheirOrder) {
  EXPECT_EQ(SumOf(4, 4, 2), "((0+0' 1+1') (2+2' 3+3'))");
}

TEST(LeafSums, MissingTrailingGroupsAreZeros) {
  EXPECT_EQ(SumOf(8, 7, 1), "(((0 1) (2 3)) ((4 5) 6))");
  EXPECT_EQ(SumOf(8, 6, 1), "(((0 1) (2 3)) (4 5))");
  EXPECT_EQ(SumOf(8, 5, 1), "(((0 1) (2 3)) 4)");
  EXPECT_EQ(SumOf(8, 3, 1), "((0 1) 2)");
  EXPECT_EQ(SumOf(8, 1, 1), "0");
  EXPECT_EQ(SumOf(8, 0, 1), "");
}

TEST(LeafSums, TakesAsManyLevelsAsSaid) {
  EXPECT_EQ(LeafSums::Levels(1), 1);
  EXPECT_EQ(LeafSums::Levels(2), 2);
  EXPECT_EQ(LeafSums::Levels(8), 4);
  Levels levels(4);
  LeafSums sums;
  int highest = 0;
  for (std::int64_t group = 0; group < 8; ++group) {
    highest = std::max(highest, sums.Enter(group, levels.Merge()));
  }
  EXPECT_EQ(highest, 3);
}

TEST(LeafSums, BeginsAgainAfterFinishAndGoesBackNowhereElse) {
  Levels levels(4);
  LeafSums sums;
  EXPECT_EQ(sums.Enter(5, levels.Merge()), 2);
  try {
    sums.Enter(4, levels.Merge());
    FAIL() << "a group behind the last one was accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "canonical sum: a leaf of group 4 behind group 5\n  This is a bug in Trireme.");
  }
  sums.Finish(levels.Merge());
  EXPECT_EQ(sums.Enter(0, levels.Merge()), 0);
}

TEST(TreeSum, AddsNeighboursFirst) {
  // 2^24 + 1 is no float: what meets first shows in the bits.
  constexpr float kBig = 16777216;
  std::vector<float> arrays = {kBig, 7, 1, 5, 1, 3, -kBig, 1};  // [4, 2]
  TreeSum({}, Dtype::kFloat32, arrays.data(), 4, 2);
  EXPECT_EQ(arrays[0], (kBig + 1) + (1 - kBig));
  EXPECT_EQ(arrays[1], 16);
  EXPECT_NE((kBig + 1) + (1 - kBig), ((kBig + 1) + 1) - kBig);
}

TEST(TreeSum, OfOneArrayIsThatArray) {
  std::vector<double> arrays = {3, 4};
  TreeSum({}, Dtype::kFloat64, arrays.data(), 1, 2);
  EXPECT_EQ(arrays, (std::vector<double>{3, 4}));
}

// Transfers beyond one call's limit are refused before they are tried.

std::string Complaint(comm::Sharding sharding, std::int64_t rows) {
  kernels::ParameterList list;
  list.BeginUnit("small");
  kernels::Parameter parameter{.name = "a", .shape = {8, 8}, .initialiser = {}};
  list.Add(parameter);
  list.BeginUnit("large");
  parameter.name = "b";
  parameter.shape = {rows, 1 << 14};
  list.Add(parameter);
  const ShardSetup setup{.sharding = sharding, .rank = 1, .ranks = 2};
  try {
    const kernels::Ownership owns = PlanOwnership(list, Dtype::kFloat32, setup);
    CheckTransfers(list, owns);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return {};
}

TEST(Ownership, APieceBeyondOneTransferIsRefused) {
  constexpr std::int64_t kFits = (1 << 17) - 1;
  for (const auto sharding :
       {comm::Sharding::kOptimizer, comm::Sharding::kGradients, comm::Sharding::kParameters}) {
    EXPECT_EQ(Complaint(sharding, kFits), "");
    EXPECT_THAT(Complaint(sharding, kFits + 1),
                testing::HasSubstr("grid.sharding: large has 2147483648 elements on a rank"));
  }
  EXPECT_EQ(Complaint(comm::Sharding::kNone, kFits + 1), "");
}

}  // namespace
}  // namespace trireme::parallel
