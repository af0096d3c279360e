// SharedGradients on two stages of two tensor ranks: who adds up what, in how many messages, and
// what a deliberate mistake leaves out.
#include "trireme/parallel/shared_gradients.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {
namespace {

using comm::Group;
using comm::Transfer;
using kernels::GradientSum;

constexpr std::int64_t kVocabulary = 7, kDim = 3;

class SharedGradientsTest : public testing::Test {
 protected:
  SharedGradientsTest() : key_value_(grid_.KeyValueGroup(1)) {
    // As a model registers them: two norms a stage, one key matrix a stage, the tied embedding on
    // the first and the last.
    const comm::GridShape at = grid_.Coordinates();
    list_.BeginUnit("embedding.token");
    Add("embedding", {kVocabulary, kDim}, GradientSum::kTied, true, at.tensor);
    for (int stage = 0; stage < 2; ++stage) {
      list_.BeginUnit("blocks." + std::to_string(stage), true);
      const bool here = stage == at.pipeline;
      Add("norm", {kDim}, GradientSum::kTensor, here);
      Add("key", {2, kDim}, GradientSum::kKeyValue, here);
      Add("query", {2, kDim}, GradientSum::kNone, here);
      Add("ffn.norm", {2 * kDim}, GradientSum::kTensor, here);
    }
    Fill({});
  }
  void Fill(const ShardSetup& setup) {
    registry_ =
        kernels::Registry(list_, Dtype::kFloat64, PlanOwnership(list_, Dtype::kFloat64, setup));
    for (const kernels::Parameter& parameter : registry_.Parameters()) {
      for (std::int64_t i = 0; i < parameter.end - parameter.begin; ++i) {
        Gradients()[parameter.offset + i] = Own(world_.Rank(), parameter, i);
      }
    }
  }

  void Add(const char* name, const kernels::Shape& shape, GradientSum sum, bool here,
           int slice = -1) {
    kernels::Parameter parameter;
    parameter.name = name;
    parameter.shape = shape;
    parameter.sum = sum;
    if (slice >= 0) {
      const Part rows = PartOf(shape[0], slice, 2);
      parameter.begin = rows.begin * shape[1];
      parameter.end = rows.end * shape[1];
    }
    if (!here) parameter.begin = parameter.end = 0;
    list_.Add(parameter);
  }
  double* Gradients() { return static_cast<double*>(registry_.Gradients()); }
  // Gradient that rank `rank` found for an element.
  static double Own(int rank, const kernels::Parameter& parameter, std::int64_t i) {
    return (rank + 1) * 100 + static_cast<double>(parameter.offset + i);
  }
  // The ranks over which a sum goes.
  std::vector<int> Ranks(GradientSum sum) const {
    const int rank = world_.Rank();
    if (sum == GradientSum::kNone) return {rank};
    if (sum == GradientSum::kTied) return {rank % 2, rank % 2 + 2};
    return {rank / 2 * 2, rank / 2 * 2 + 1};
  }
  std::map<GradientSum, comm::Collectives> Groups() {
    return {{GradientSum::kTied, grid_.Over(Group::kEmbedding)},
            {GradientSum::kTensor, grid_.Over(Group::kTensor)},
            {GradientSum::kKeyValue, {key_value_, Group::kKeyValue, grid_.Traffic()}}};
  }
  // Every gradient is its sum, those of kind `but` this rank's own.
  void ExpectSummed(GradientSum but = GradientSum::kNone) {
    for (const kernels::Parameter& parameter : registry_.Parameters()) {
      for (std::int64_t i = 0; i < parameter.end - parameter.begin; ++i) {
        double wanted = 0;
        for (const int rank : Ranks(parameter.sum)) wanted += Own(rank, parameter, i);
        if (parameter.sum == but) wanted = Own(world_.Rank(), parameter, i);
        EXPECT_EQ(Gradients()[parameter.offset + i], wanted) << parameter.name << " " << i;
      }
    }
  }
  const comm::Traffic& Traffic(Group group) {
    return grid_.Traffic().At(group, Transfer::kAllReduce);
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  comm::ProcessGrid grid_{world_, {2, 1, 1, 2}, {.sequence_parallel = true}};
  comm::Communicator key_value_;
  kernels::ParameterList list_;
  kernels::Registry registry_;
};

TEST_F(SharedGradientsTest, EachKindIsSummedOverItsGroup) {
  SharedGradients shared(registry_, Groups());
  // The norms travel packed; a single tensor in place.
  EXPECT_EQ(shared.Bytes(), 128);  // for 3 * kDim values: a buffer takes whole lines
  shared.Sum();
  ExpectSummed();
  EXPECT_EQ(Traffic(Group::kTensor).calls, 1);
  EXPECT_EQ(Traffic(Group::kTensor).payload, 3 * kDim * 8);
  EXPECT_EQ(Traffic(Group::kKeyValue).calls, 1);
  EXPECT_EQ(Traffic(Group::kKeyValue).payload, 2 * kDim * 8);
  EXPECT_EQ(Traffic(Group::kEmbedding).calls, 1);
  const std::int64_t rows = PartOf(kVocabulary, grid_.Coordinates().tensor, 2).Size();
  EXPECT_EQ(Traffic(Group::kEmbedding).payload, rows * kDim * 8);
}

TEST_F(SharedGradientsTest, AMissingGroupLeavesOutItsSumAlone) {
  auto groups = Groups();
  groups.erase(GradientSum::kTensor);
  SharedGradients shared(registry_, groups);
  EXPECT_EQ(shared.Bytes(), 0);
  shared.Sum();
  ExpectSummed(GradientSum::kTensor);
  EXPECT_EQ(Traffic(Group::kTensor).calls, 0);
}

TEST_F(SharedGradientsTest, GroupsOfOneAndMissingGroupsHaveNothingToSum) {
  SharedGradients shared(registry_, {{GradientSum::kTied, comm::Collectives()}});
  shared.Sum();
  EXPECT_EQ(shared.Bytes(), 0);
  for (const kernels::Parameter& parameter : registry_.Parameters()) {
    if (parameter.begin == parameter.end) continue;
    EXPECT_EQ(Gradients()[parameter.offset], Own(world_.Rank(), parameter, 0));
  }
}

// Before pieces are scattered those of tensor ranks are summed, piece by piece; tied ones when they
// have met, where they are owned.
TEST_F(SharedGradientsTest, ShardedPiecesAreSummedOneByOne) {
  ShardSetup setup;
  setup.sharding = comm::Sharding::kOptimizer;
  setup.tensor_ranks = 2;
  setup.bucket_bytes = 1;
  Fill(setup);
  SharedGradients shared(registry_, Groups(), true);
  EXPECT_EQ(shared.Bytes(), 128);  // for 3 * kDim values: a buffer takes whole lines
  const int pieces = static_cast<int>(registry_.Owns().pieces.size());
  EXPECT_EQ(pieces, 2);  // the table, this stage's block
  shared.SumPiece(0);
  EXPECT_EQ(Traffic(Group::kTensor).calls, 0);
  shared.SumPiece(1);
  EXPECT_EQ(Traffic(Group::kTensor).payload, 3 * kDim * 8);
  EXPECT_EQ(Traffic(Group::kKeyValue).payload, 2 * kDim * 8);
  EXPECT_EQ(Traffic(Group::kEmbedding).calls, 0);
  ExpectSummed(GradientSum::kTied);
  shared.Sum();
  ExpectSummed();
  EXPECT_EQ(Traffic(Group::kTensor).calls, 1);
  EXPECT_EQ(Traffic(Group::kKeyValue).calls, 1);
  EXPECT_EQ(Traffic(Group::kEmbedding).calls, 1);
}

}  // namespace
}  // namespace trireme::parallel
