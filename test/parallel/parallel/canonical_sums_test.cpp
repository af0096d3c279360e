// Canonical sums over ranks, and the stages of sharding.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "defects.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {
namespace {

using comm::Group;
using comm::Sharding;
using comm::Transfer;
using kernels::GradientSum;

// Canonical sums: eight groups of leaves, shared out over 1, 2, 4 and 8 ranks in every way, meet in
// one tree: the same bits as a plain recursion over them.

constexpr int kGroups = 8;

using Floats = std::vector<float>;

// Values of very different sizes: the order of a sum shows.
Floats Leaf(std::int64_t group, std::int64_t count) {
  std::mt19937 random(static_cast<unsigned>(group) + 7);
  std::uniform_real_distribution<float> mantissa(-1, 1), exponent(-6, 6);
  Floats values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(mantissa(random) * std::exp2(exponent(random)));
  }
  return values;
}

// The reference: groups [begin, end), those from `present` on are zeros.
Floats Tree(std::int64_t begin, std::int64_t end, std::int64_t present, std::int64_t count) {
  if (end - begin == 1) {
    return begin < present ? Leaf(begin, count) : Floats(static_cast<std::size_t>(count));
  }
  const std::int64_t middle = (begin + end) / 2;
  Floats sum = Tree(begin, middle, present, count);
  const Floats other = Tree(middle, end, present, count);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  return sum;
}

// Values of rank `rank` of `ranks` when it met its groups one by one.
Floats Local(int rank, int ranks, std::int64_t present, std::int64_t count) {
  const Part groups = PartOf(kGroups, rank, ranks);
  std::vector<Floats> levels(static_cast<std::size_t>(LeafSums::Levels(groups.Size())),
                             Floats(static_cast<std::size_t>(count)));
  const auto merge = [&](int from, int to) {
    Floats& source = levels.at(static_cast<std::size_t>(from));
    for (std::size_t i = 0; i < source.size(); ++i) {
      levels.at(static_cast<std::size_t>(to))[i] += source[i];
      source[i] = 0;
    }
  };
  LeafSums sums;
  for (std::int64_t group = groups.begin; group < std::min(groups.end, present); ++group) {
    Floats& level = levels.at(static_cast<std::size_t>(sums.Enter(group - groups.begin, merge)));
    const Floats leaf = Leaf(group, count);
    for (std::size_t i = 0; i < level.size(); ++i) level[i] += leaf[i];
  }
  sums.Finish(merge);
  return levels[0];
}

int Different(const float* one, const float* other, std::int64_t count) {
  int different = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::memcmp(one + i, other + i, sizeof(float)) != 0) ++different;
  }
  return different;
}

// The world in groups of `ranks` consecutive ones, and across them.
struct SumsLayout {
  explicit SumsLayout(int ranks) {
    const comm::Communicator world = comm::Communicator::Adopt(MPI_COMM_WORLD);
    world_rank = world.Rank();
    shard = world.Split(world.Rank() / ranks, world.Rank());
    data = world.Split(world.Rank() % ranks, world.Rank());
  }
  comm::Collectives Shard() { return {shard, Group::kShard, ledger, front.get()}; }
  comm::Collectives Data() { return {data, Group::kData, ledger}; }
  comm::Communicator shard, data;
  comm::Ledger ledger;
  std::unique_ptr<comm::Channel> front;
  int world_rank = 0;
};

class CanonicalSumsTest : public testing::TestWithParam<int> {
 protected:
  SumsLayout layout_{GetParam()};
  int Rank() const { return layout_.shard.Rank(); }
  int Ranks() const { return layout_.shard.Size(); }
};

INSTANTIATE_TEST_SUITE_P(GroupsOf, CanonicalSumsTest, testing::Values(1, 2, 4, 8));

TEST_P(CanonicalSumsTest, EverySplitHasTheBitsOfTheTree) {
  // 1000 passes the buffer and travels in pieces; 5 is less than a line for each rank.
  for (const std::int64_t count : {5, 320, 1000}) {
    TreeCollectives tree(layout_.Shard(), {}, Dtype::kFloat32, 333);
    for (std::int64_t present = 0; present <= kGroups; ++present) {
      Floats sum = Local(Rank(), Ranks(), present, count);
      tree.AllReduce(Dtype::kFloat32, sum.data(), count);
      const Floats wanted = Tree(0, kGroups, present, count);
      EXPECT_EQ(Different(sum.data(), wanted.data(), count), 0) << count << " " << present;
    }
  }
}

TEST_P(CanonicalSumsTest, PartsMayBeOfAnySize) {
  std::vector<std::int64_t> counts;
  std::int64_t total = 0, begin = 0, most = 0;
  for (int rank = 0; rank < Ranks(); ++rank) {
    counts.push_back(rank % 3 == 1 ? 0 : 37 * rank + 11);
    if (rank == Rank()) begin = total;
    total += counts.back();
    most = std::max(most, counts.back() * Ranks());
  }
  const std::int64_t own = counts[static_cast<std::size_t>(Rank())];
  const std::int64_t bytes = device::AllocatedBytes();
  TreeCollectives tree(layout_.Shard(), {}, Dtype::kFloat32, most);
  EXPECT_EQ(device::AllocatedBytes() - bytes, tree.Bytes());
  const Floats local = Local(Rank(), Ranks(), kGroups, total);
  const Floats wanted = Tree(0, kGroups, kGroups, total);
  Floats in_place = local, part(static_cast<std::size_t>(own) + 1, 77);
  tree.ReduceScatterInPlace(Dtype::kFloat32, in_place.data(), counts);
  EXPECT_EQ(Different(in_place.data(), wanted.data() + begin, own), 0);
  tree.ReduceScatter(Dtype::kFloat32, local.data(), part.data(), counts);
  EXPECT_EQ(Different(part.data(), wanted.data() + begin, own), 0);
  EXPECT_EQ(part.back(), 77);
}

TEST_P(CanonicalSumsTest, MovesWhatARingMoves) {
  TreeCollectives tree(layout_.Shard(), {}, Dtype::kFloat32, 1000);
  Floats sum(1000);
  tree.AllReduce(Dtype::kFloat32, sum.data(), 1000);
  const double moved = layout_.ledger.At(Group::kShard, Transfer::kAllToAll).moved +
                       layout_.ledger.At(Group::kShard, Transfer::kAllGather).moved;
  EXPECT_DOUBLE_EQ(moved, comm::Moved(Transfer::kAllReduce, Ranks(), 4000));
}

TEST_P(CanonicalSumsTest, ATreeOfRanksShows) {
  comm::Ledger unrecorded;
  layout_.front = std::make_unique<test::SpoilingChannel>(
      comm::Collectives(layout_.shard, Group::kShard, unrecorded), test::Defect::kTreeOfRanks);
  TreeCollectives tree(layout_.Shard(), {}, Dtype::kFloat32, 1000);
  Floats sum = Local(Rank(), Ranks(), kGroups, 1000);
  tree.AllReduce(Dtype::kFloat32, sum.data(), 1000);
  const Floats wanted = Tree(0, kGroups, kGroups, 1000);
  const int different = Different(sum.data(), wanted.data(), 1000);
  if (Ranks() <= 2) {
    EXPECT_EQ(different, 0);  // one sum has one order
  } else {
    EXPECT_GT(different, 100);
  }
}

TEST_P(CanonicalSumsTest, ASmallBufferIsAnError) {
  if (Ranks() == 1) return;
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(Ranks()), 33);
  TreeCollectives tree(layout_.Shard(), {}, Dtype::kFloat32, 32 * Ranks());
  Floats data(static_cast<std::size_t>(33 * Ranks()));
  EXPECT_THROW(tree.ReduceScatterInPlace(Dtype::kFloat32, data.data(), counts), Error);
}

TEST(CanonicalSums, GroupsThatAreNoPowerOfTwoAreRefused) {
  const comm::Communicator world = comm::Communicator::Adopt(MPI_COMM_WORLD);
  const comm::Communicator three = world.Split(world.Rank() < 3 ? 0 : 1, world.Rank());
  if (three.Size() != 3) return;
  comm::Ledger ledger;
  EXPECT_THROW(TreeCollectives({three, Group::kShard, ledger}, {}, Dtype::kFloat32, 9), Error);
}

// A registry whose table has a second gradient; its gradients are whole until the step's end.
class CanonicalBucketsTest : public CanonicalSumsTest {
 protected:
  void Build(Sharding sharding) {
    kernels::ParameterList list;
    for (const auto& [name, rows] : {std::pair<const char*, std::int64_t>{"embedding.token", 53},
                                     {"blocks.0", 40},
                                     {"blocks.1", 41},
                                     {"head", 3}}) {
      list.BeginUnit(name, std::string(name).starts_with("blocks"));
      kernels::Parameter parameter;
      parameter.name = std::string(name) + ".weight";
      parameter.shape = {rows, 7};
      list.Add(parameter);
    }
    list.AddSecondGradient(0);
    setup_.sharding = sharding;
    setup_.rank = sharding == Sharding::kNone ? 0 : Rank();
    setup_.ranks = sharding == Sharding::kNone ? 1 : Ranks();
    setup_.canonical = true;
    setup_.gradient_levels = 2;
    setup_.bucket_bytes = 500;
    registry_ =
        kernels::Registry(list, Dtype::kFloat32, PlanOwnership(list, Dtype::kFloat32, setup_));
    const Floats local = Local(layout_.world_rank, kGroups, kGroups, registry_.GradientSize());
    std::memcpy(registry_.Gradients(), local.data(), local.size() * sizeof(float));
  }
  float* Gradients() { return static_cast<float*>(registry_.Gradients()); }
  kernels::Registry registry_;
  ShardSetup setup_;
};

INSTANTIATE_TEST_SUITE_P(ShardGroupsOf, CanonicalBucketsTest, testing::Values(1, 2, 4, 8));

TEST_P(CanonicalBucketsTest, SumToTheBitsOfTheTreeHoweverSharded) {
  for (const Sharding sharding :
       {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    if (sharding == Sharding::kNone && Ranks() != 1) continue;  // then the data group is the world
    Build(sharding);
    const kernels::Ownership& owns = registry_.Owns();
    EXPECT_FALSE(owns.gradients_sharded);
    const std::int64_t before = device::AllocatedBytes();
    GradientBuckets buckets(layout_.Data(), layout_.Shard(), registry_, {}, setup_, nullptr);
    EXPECT_EQ(device::AllocatedBytes() - before, buckets.Bytes());
    buckets.Begin();
    buckets.Ready(0);
    EXPECT_EQ(buckets.FirstStart(), 0);
    buckets.Wait();
    const Floats wanted = Tree(0, kGroups, kGroups, registry_.GradientSize());
    std::int64_t owned = 0;
    for (const kernels::Piece& piece : owns.pieces) {
      EXPECT_EQ(Different(Gradients() + piece.gradient, wanted.data() + piece.own.begin,
                          piece.own.Size()),
                0);
      owned += piece.own.Size();
    }
    EXPECT_EQ(layout_.shard.Sum(owned), registry_.GradientSize());
    // Both gradients of the table are cut alike.
    const kernels::Piece &table = owns.pieces.front(), &second = owns.pieces.back();
    EXPECT_EQ(second.range.begin, registry_.SecondRange().begin);
    if (sharding != Sharding::kNone) {
      const kernels::Owned part = registry_.OwnedOf(0);
      EXPECT_EQ(second.own.begin - second.range.begin, table.own.begin);
      EXPECT_EQ(second.own.Size(), part.flat.Size());
    }
  }
}

TEST_P(CanonicalBucketsTest, SecondGradientsThatAreNotFiniteNameTheirTable) {
  Build(Sharding::kOptimizer);
  registry_.SecondGradient(0).As<float>()[9] = std::numeric_limits<float>::quiet_NaN();
  GradientBuckets buckets(layout_.Data(), layout_.Shard(), registry_, {}, setup_, nullptr);
  buckets.Begin();
  buckets.Ready(0);
  buckets.Wait();
  EXPECT_EQ(buckets.NotFinite(), "embedding.token.weight");
}

// Sharding where stages and tensor slices meet it: two stages of two tensor ranks with uneven
// slices, two data ranks, an embedding that both stages hold.

constexpr std::int64_t kVocabulary = 37, kDim = 5, kFeatures = 13;
constexpr int kBlocksAStage = 3;

class StagesTest : public testing::Test {
 protected:
  // The embedding on both stages, blocks on one each; rows of matrices are sliced.
  void Build(Sharding sharding, int shard_group) {
    const comm::GridOptions options{true, sharding, shard_group};
    grid_ = std::make_unique<comm::ProcessGrid>(world_, comm::GridShape{2, 2, 1, 2}, options);
    key_value_ = grid_->KeyValueGroup(1);
    const comm::GridShape at = grid_->Coordinates();
    list_ = {};
    list_.BeginUnit("embedding.token");
    Add("embedding", {kVocabulary, kDim}, GradientSum::kTied, true, true);
    for (int i = 0; i < 2 * kBlocksAStage; ++i) {
      const bool here = i / kBlocksAStage == at.pipeline;
      list_.BeginUnit("blocks." + std::to_string(i), true);
      Add("norm", {kDim}, GradientSum::kTensor, here, false);
      Add("key", {4, kDim}, GradientSum::kKeyValue, here, false);
      Add("up", {kFeatures, kDim}, GradientSum::kNone, here, true);
      Add("ffn.norm", {2 * kDim}, GradientSum::kTensor, here, false);
    }
    setup_.sharding = sharding;
    setup_.rank = grid_->Shard().Rank();
    setup_.ranks = grid_->Shard().Size();
    setup_.tensor_ranks = 2;
    setup_.bucket_bytes = 700;  // between a block of the smaller and of the larger slice
    registry_ =
        kernels::Registry(list_, Dtype::kFloat64, PlanOwnership(list_, Dtype::kFloat64, setup_));
  }
  void Add(const char* name, const kernels::Shape& shape, GradientSum sum, bool here, bool sliced) {
    kernels::Parameter parameter;
    parameter.name = name;
    parameter.shape = shape;
    parameter.sum = sum;
    if (sliced) {
      const Part rows = PartOf(shape[0], grid_->Coordinates().tensor, 2);
      parameter.begin = rows.begin * shape[1];
      parameter.end = rows.end * shape[1];
    }
    if (!here) parameter.begin = parameter.end = 0;
    list_.Add(parameter);
  }
  // Gradient that the rank at these coordinates found for element `i` of this one's part.
  static double Found(int stage, int data, int tensor, std::size_t id, std::int64_t i) {
    return 1 + stage + 10 * data + 100 * tensor + 1000 * static_cast<double>(id) +
           static_cast<double>(i % 7);
  }
  double Wanted(std::size_t id, std::int64_t i) const {
    const GradientSum sum = registry_.Parameters()[id].sum;
    const comm::GridShape at = grid_->Coordinates();
    double wanted = 0;
    for (int stage = 0; stage < 2; ++stage) {
      if (stage != at.pipeline && sum != GradientSum::kTied) continue;
      for (int tensor = 0; tensor < 2; ++tensor) {
        const bool others = sum == GradientSum::kTensor || sum == GradientSum::kKeyValue;
        if (tensor != at.tensor && !others) continue;
        for (int data = 0; data < 2; ++data) wanted += Found(stage, data, tensor, id, i);
      }
    }
    return wanted;
  }
  void AddFound(int unit) {
    const comm::GridShape at = grid_->Coordinates();
    for (std::size_t id = 0; id < registry_.Parameters().size(); ++id) {
      const auto number = static_cast<kernels::ParameterId>(id);
      if (registry_.UnitOf(number) != unit || !registry_.Parameters()[id].Held()) continue;
      const kernels::Matrix gradient = registry_.Gradient(number);
      for (std::int64_t i = 0; i < gradient.Size(); ++i) {
        gradient.As<double>()[i] += Found(at.pipeline, at.data, at.tensor, id, i);
      }
    }
  }
  void Step() {
    SharedGradients shared(
        registry_,
        {{GradientSum::kTied, grid_->Over(Group::kEmbedding)},
         {GradientSum::kTensor, grid_->Over(Group::kTensor)},
         {GradientSum::kKeyValue, {key_value_, Group::kKeyValue, grid_->Traffic()}}},
        setup_.sharding != Sharding::kNone);
    ShardedUnits units(grid_->Over(Group::kShard), registry_, {}, setup_, &shared);
    GradientBuckets buckets(grid_->Over(Group::kData), grid_->Over(Group::kShard), registry_, {},
                            setup_, &shared);
    registry_.ZeroGradients();
    units.BeginStep();
    buckets.Begin();
    for (int unit = static_cast<int>(registry_.Units().size()); unit-- > 0;) {
      units.BeginGradient(unit);
      AddFound(unit);
      units.EndGradient(unit);
      buckets.Ready(registry_.Units()[static_cast<std::size_t>(unit)].range.begin);
    }
    units.FinishGradients();
    buckets.Wait();
    shared.Sum();
  }
  int Wrong() const {
    int wrong = 0;
    const auto* gradients = static_cast<const double*>(registry_.Gradients());
    for (std::size_t id = 0; id < registry_.Parameters().size(); ++id) {
      const kernels::Owned owned = registry_.OwnedOf(static_cast<kernels::ParameterId>(id));
      const std::int64_t first = owned.flat.begin - registry_.Parameters()[id].offset;
      for (std::int64_t i = 0; i < owned.flat.Size(); ++i) {
        if (gradients[owned.gradient + i] != Wanted(id, first + i)) ++wrong;
      }
    }
    return wrong;
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  std::unique_ptr<comm::ProcessGrid> grid_;
  comm::Communicator key_value_;
  kernels::ParameterList list_;
  kernels::Registry registry_;
  ShardSetup setup_;
};

TEST_F(StagesTest, EverySumReachesEveryOwner) {
  for (const Sharding sharding :
       {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (const int shard_group : {1, 2}) {
      if (sharding == Sharding::kNone && shard_group != 1) continue;
      Build(sharding, sharding == Sharding::kNone ? 0 : shard_group);
      Step();
      EXPECT_EQ(Wrong(), 0) << comm::NameOf(sharding) << ", shard group " << shard_group;
    }
  }
}

TEST_F(StagesTest, TensorRanksGroupTheSameUnitsInSpiteOfUnevenSlices) {
  Build(Sharding::kOptimizer, 0);
  // A rank's own sizes would group the blocks differently.
  const auto bytes = [&](int unit) {
    return registry_.Units()[static_cast<std::size_t>(unit)].range.Size() * 8;
  };
  const int block = 1 + kBlocksAStage * grid_->Coordinates().pipeline;
  const std::int64_t smallest = grid_->World().Min(bytes(block));
  EXPECT_LT(smallest, grid_->World().Max(bytes(block)));
  for (setup_.bucket_bytes = smallest; setup_.bucket_bytes < 3 * smallest;
       setup_.bucket_bytes += 8) {
    const kernels::Ownership owns = PlanOwnership(list_, Dtype::kFloat64, setup_);
    const auto pieces = static_cast<std::int64_t>(owns.pieces.size());
    ASSERT_EQ(grid_->Tensor().Min(pieces), grid_->Tensor().Max(pieces)) << setup_.bucket_bytes;
  }
}

TEST_F(StagesTest, BothStagesOwnTheSamePartOfTheTable) {
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    Build(sharding, 0);
    const Part own = registry_.OwnedOf(0).flat;
    EXPECT_EQ(registry_.Owns().pieces.front().range.end, registry_.Units().front().range.end);
    EXPECT_EQ(grid_->Embedding().Max(own.begin), grid_->Embedding().Min(own.begin));
    EXPECT_EQ(grid_->Embedding().Max(own.end), grid_->Embedding().Min(own.end));
  }
}

}  // namespace
}  // namespace trireme::parallel
