// Micro-batches: windows side by side, shifted targets, masked tails.
#include "trireme/data/batch.hpp"

#include "scratch.hpp"

namespace trireme::data {
namespace {

using testing::ElementsAre;

class Batch : public Scratch {};

TEST_F(Batch, HoldsInputsShiftedTargetsAndMasks) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));  // train: 0 1 2 3 0 1 2 3 1 0
  const std::vector<Sample> samples = {{5, 1, 4}, {std::int64_t{1} << 40, 8, 1}};
  MicroBatch batch;
  FillMicroBatch(file, Split::kTrain, samples, 4, batch);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.length, 4);
  EXPECT_EQ(batch.valid, 5);
  EXPECT_THAT(batch.inputs, ElementsAre(1, 2, 3, 0, 1, 0, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(2, 3, 0, 1, 0, kMasked, kMasked, kMasked));
  EXPECT_THAT(batch.ordinals, ElementsAre(5u, std::uint64_t{1} << 40));
}

TEST_F(Batch, ForgetsTheLastFillAndTakesOtherSplits) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));
  MicroBatch batch;
  FillMicroBatch(file, Split::kTrain, std::vector<Sample>(3, Sample{0, 0, 4}), 4, batch);
  FillMicroBatch(file, Split::kValid, std::vector<Sample>{{1, 0, 2}}, 2, batch);
  EXPECT_THAT(batch.inputs, ElementsAre(3, 2));
  EXPECT_THAT(batch.targets, ElementsAre(2, 1));
  EXPECT_THAT(batch.ordinals, ElementsAre(1u));
  EXPECT_EQ(batch.valid, 2);
  FillMicroBatch(file, Split::kTest, {}, 2, batch);  // a rank without a share
  EXPECT_EQ(batch.sequences, 0);
  EXPECT_TRUE(batch.inputs.empty());
}

}  // namespace
}  // namespace trireme::data
