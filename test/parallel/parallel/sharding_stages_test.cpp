// Sharding where stages and tensor slices meet it: two stages of two tensor ranks with uneven
// slices, two data ranks, an embedding that both stages hold.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/process_grid.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {
namespace {

using comm::Group;
using comm::Sharding;
using kernels::GradientSum;

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
