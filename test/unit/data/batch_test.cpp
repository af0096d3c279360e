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
  Entry batch;
  FillEntry(file, Split::kTrain, samples, 4, batch);
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
  Entry batch;
  FillEntry(file, Split::kTrain, std::vector<Sample>(3, Sample{0, 0, 4}), 4, batch);
  FillEntry(file, Split::kValid, std::vector<Sample>{{1, 0, 2}}, 2, batch);
  EXPECT_THAT(batch.inputs, ElementsAre(3, 2));
  EXPECT_THAT(batch.targets, ElementsAre(2, 1));
  EXPECT_THAT(batch.ordinals, ElementsAre(1u));
  EXPECT_EQ(batch.valid, 2);
  FillEntry(file, Split::kTest, {}, 2, batch);  // a rank without a share
  EXPECT_EQ(batch.sequences, 0);
  EXPECT_TRUE(batch.inputs.empty());
}

// Parts of the ranks of a context group make up the whole window, in the order of their blocks.
TEST_F(Batch, HoldsSomePositionsOfEachWindow) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));  // train: 0 1 2 3 0 1 2 3 1 0
  const std::vector<Sample> samples = {{5, 1, 5}, {6, 6, 3}};
  Entry batch;
  FillEntry(file, Split::kTrain, samples, 5, batch, PositionsOf(5, 0, 2));
  EXPECT_EQ(batch.length, 3);  // positions 0; 3, 4
  EXPECT_THAT(batch.inputs, ElementsAre(1, 0, 1, 2, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(2, 1, 2, 3, kMasked, kMasked));
  EXPECT_EQ(batch.valid, 4);
  EXPECT_EQ(batch.positions.At(1), 3);
  EXPECT_THAT(batch.ordinals, ElementsAre(5u, 6u));
  FillEntry(file, Split::kTrain, samples, 5, batch, PositionsOf(5, 1, 2));
  EXPECT_EQ(batch.length, 2);  // positions 1; 2
  EXPECT_THAT(batch.inputs, ElementsAre(2, 3, 3, 1));
  EXPECT_THAT(batch.targets, ElementsAre(3, 0, 1, 0));
  EXPECT_EQ(batch.valid, 4);
}

TEST_F(Batch, CutWindowsLoseAndRepeatNothing) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));
  const std::vector<Sample> samples = {{0, 0, 7}, {1, 5, 4}, {2, 2, 1}};
  Entry whole, part;
  FillEntry(file, Split::kTrain, samples, 7, whole);
  EXPECT_EQ(whole.positions.Count(), 7);
  for (const int ranks : {1, 2, 3, 7, 8}) {
    std::vector<int> seen(21, 0);
    std::int64_t valid = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      FillEntry(file, Split::kTrain, samples, 7, part, PositionsOf(7, rank, ranks));
      valid += part.valid;
      ASSERT_EQ(part.inputs.size(), static_cast<std::size_t>(3 * part.length));
      for (std::int64_t row = 0; row < 3 * part.length; ++row) {
        const auto at =
            static_cast<std::size_t>(row / part.length * 7 + part.positions.At(row % part.length));
        ++seen[at];
        EXPECT_EQ(part.inputs[static_cast<std::size_t>(row)], whole.inputs[at]);
        EXPECT_EQ(part.targets[static_cast<std::size_t>(row)], whole.targets[at]);
      }
    }
    EXPECT_EQ(valid, whole.valid);
    EXPECT_THAT(seen, testing::Each(1)) << ranks << " ranks";
  }
}

TEST_F(Batch, MayHoldNoPositions) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));
  Entry batch;
  const Positions none = PositionsOf(1, 1, 4);
  ASSERT_EQ(none.Count(), 0);
  FillEntry(file, Split::kTrain, std::vector<Sample>{{3, 0, 1}}, 1, batch, none);
  EXPECT_EQ(batch.sequences, 1);
  EXPECT_EQ(batch.length, 0);
  EXPECT_EQ(batch.valid, 0);
  EXPECT_TRUE(batch.inputs.empty());
  EXPECT_TRUE(batch.targets.empty());
  EXPECT_THAT(batch.ordinals, ElementsAre(3u));
}

}  // namespace
}  // namespace trireme::data
