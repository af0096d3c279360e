// GradientBuckets: sums, what is in flight when, parameters held elsewhere, values that are not
// finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::parallel {
namespace {

using comm::Group;
using comm::Transfer;

constexpr std::int64_t kBucketBytes = 4000;  // a layer's

class BucketsTest : public testing::Test {
 protected:
  // Adds a parameter of `count` elements, 0: held by other ranks.
  void Add(const std::string& name, std::int64_t count) {
    kernels::Parameter parameter;
    parameter.name = name;
    parameter.shape = {std::max(count, std::int64_t{1})};
    parameter.end = count;
    list_.Add(parameter);
  }
  GradientBuckets Buckets(const comm::Collectives& data) {
    return {data, {}, registry_, {}, {}, nullptr};
  }
  // Four layers, with parameters of other stages before, among and behind them.
  void AddLayers() {
    Add("before", 0);
    for (int layer = 0; layer < 4; ++layer) {
      Add("layers." + std::to_string(layer), 1000 + 7 * layer);
      Add("elsewhere." + std::to_string(layer), 0);
    }
    Fill(kBucketBytes);
  }
  void Fill(std::int64_t bucket_bytes) {
    ShardSetup setup;
    setup.bucket_bytes = bucket_bytes;
    registry_ =
        kernels::Registry(list_, Dtype::kFloat32, PlanOwnership(list_, Dtype::kFloat32, setup));
    for (std::int64_t i = 0; i < registry_.Size(); ++i) {
      Gradients()[i] = static_cast<float>((i % 1000) * (world_.Rank() + 1));
    }
  }
  float* Gradients() { return static_cast<float*>(registry_.Gradients()); }
  // Every flat offset at which a parameter starts, from the last: as a backward pass announces
  // them.
  std::vector<std::int64_t> BackwardOrder() const {
    std::vector<std::int64_t> offsets;
    for (const kernels::Parameter& parameter : registry_.Parameters()) {
      if (parameter.begin < parameter.end) offsets.push_back(parameter.offset);
    }
    std::reverse(offsets.begin(), offsets.end());
    return offsets;
  }
  void ExpectSummed() {
    const auto ranks = static_cast<float>(world_.Size() * (world_.Size() + 1) / 2);
    for (std::int64_t i = 0; i < registry_.Size(); ++i) {
      ASSERT_EQ(Gradients()[i], static_cast<float>(i % 1000) * ranks) << i;
    }
  }
  const comm::Traffic& Traffic() const { return ledger_.At(Group::kData, Transfer::kAllReduce); }

  comm::Ledger ledger_;
  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  comm::Collectives data_{world_, Group::kData, ledger_};
  kernels::ParameterList list_;
  kernels::Registry registry_;
};

TEST_F(BucketsTest, AreInFlightBeforeTheBackwardPassEnds) {
  AddLayers();
  GradientBuckets buckets = Buckets(data_);
  EXPECT_EQ(buckets.Count(), 4u);
  buckets.Begin();
  EXPECT_EQ(buckets.FirstStart(), 0);
  EXPECT_EQ(buckets.LastReady(), 0);
  const double begin = Seconds();
  for (const std::int64_t offset : BackwardOrder()) buckets.Ready(offset);
  EXPECT_GE(buckets.FirstStart(), begin);
  EXPECT_LT(buckets.FirstStart(), buckets.LastReady());
  EXPECT_EQ(buckets.StartedBeforeEnd(), 3);  // all but that of the first layer
  buckets.Wait();
  ExpectSummed();
  EXPECT_EQ(Traffic().calls, static_cast<std::int64_t>(buckets.Count()));
  EXPECT_EQ(Traffic().payload, registry_.Size() * 4);
  EXPECT_GT(Traffic().seconds_hidden, 0);
  EXPECT_LE(Traffic().seconds_waited, buckets.SecondsWaited());
  EXPECT_EQ(buckets.NotFinite(), "");

  // The next step starts afresh; with all ready at once nothing was in flight before.
  Fill(kBucketBytes);
  GradientBuckets again = Buckets(data_);
  again.Begin();
  again.Ready(0);
  EXPECT_EQ(again.StartedBeforeEnd(), 0);
  EXPECT_GE(again.FirstStart(), again.LastReady());
  again.Wait();
  ExpectSummed();
  again.Begin();
  EXPECT_EQ(again.FirstStart(), 0);
}

// 16 MiB under way at once: a larger bucket is complete before the next one starts.
TEST_F(BucketsTest, HoldBoundedMemoryOfMpi) {
  constexpr std::int64_t large = std::int64_t{5} << 20;  // elements
  for (int layer = 0; layer < 3; ++layer) Add("layers." + std::to_string(layer), large);
  Fill(4 * large);
  GradientBuckets buckets = Buckets(data_);
  ASSERT_EQ(buckets.Count(), 3u);
  const int ranks = world_.Size();
  EXPECT_EQ(buckets.LibraryBytes(), (ranks == 1 ? 0 : ranks == 3 ? 2 : 1) * 4 * large);
  buckets.Begin();
  buckets.Ready(BackwardOrder()[1]);
  EXPECT_GE(Traffic().calls, ranks == 1 ? 0 : 1);
  buckets.Ready(0);
  EXPECT_GE(Traffic().calls, ranks == 1 ? 0 : 2);
  buckets.Wait();
  ExpectSummed();
}

TEST_F(BucketsTest, AreCutWhereSomethingBecomesReady) {
  AddLayers();
  // The last layer has 4,084 bytes; with the gap down to the parameter before it, which other ranks
  // hold, it would pass 4,100, and wait there for the layer before.
  Fill(4085);
  GradientBuckets buckets = Buckets(data_);
  EXPECT_EQ(buckets.Count(), 3u);
  buckets.Begin();
  const std::vector<std::int64_t> offsets = BackwardOrder();
  buckets.Ready(offsets[0]);
  EXPECT_EQ(buckets.FirstStart(), 0);
  buckets.Ready(offsets[1]);
  EXPECT_GT(buckets.FirstStart(), 0);
  buckets.Ready(0);
  EXPECT_EQ(buckets.StartedBeforeEnd(), 1);
  buckets.Wait();
  ExpectSummed();
}

TEST_F(BucketsTest, ProgressCompletesThem) {
  AddLayers();
  GradientBuckets buckets = Buckets(data_);
  buckets.Begin();
  buckets.Ready(BackwardOrder().front());
  const double begin = Seconds();
  constexpr double kPatience = 20;  // seconds
  while (Traffic().calls == 0 && Seconds() - begin < kPatience) buckets.Progress();
  EXPECT_EQ(Traffic().calls, 1);  // complete and recorded, without a wait
  EXPECT_EQ(Traffic().seconds_waited, 0);
  buckets.Ready(0);
  buckets.Wait();
  ExpectSummed();
}

TEST_F(BucketsTest, AnEmptyStorageHasNone) {
  Add("elsewhere", 0);
  Fill(kBucketBytes);
  GradientBuckets buckets = Buckets(data_);
  EXPECT_EQ(buckets.Count(), 0u);
  buckets.Begin();
  buckets.Ready(0);
  buckets.Progress();
  buckets.Wait();
  EXPECT_EQ(buckets.FirstStart(), 0);
  EXPECT_EQ(buckets.StartedBeforeEnd(), 0);
  EXPECT_EQ(Traffic().calls, 0);
}

TEST_F(BucketsTest, AGroupOfOneTransfersNothingAndStillLooks) {
  AddLayers();
  Gradients()[registry_.Parameters()[3].offset + 5] = std::numeric_limits<float>::quiet_NaN();
  GradientBuckets buckets = Buckets({});
  buckets.Begin();
  for (const std::int64_t offset : BackwardOrder()) buckets.Ready(offset);
  buckets.Wait();
  EXPECT_EQ(buckets.NotFinite(), "layers.1");
  EXPECT_EQ(buckets.FirstStart(), 0);
  EXPECT_EQ(buckets.StartedBeforeEnd(), 0);
}

TEST_F(BucketsTest, ABucketThatWasNeverReadyIsAnError) {
  AddLayers();
  GradientBuckets buckets = Buckets({});
  buckets.Begin();
  buckets.Ready(BackwardOrder().front());
  EXPECT_THROW(buckets.Wait(), Error);
}

TEST(BucketKeys, HaveDefaultsAndRanges) {
  deck::Schema schema;
  Declare(schema);
  ASSERT_NE(schema.Find("grid.prefetch"), nullptr);
  EXPECT_EQ(schema.Find("grid.prefetch")->fallback, "1");
  EXPECT_EQ(schema.Find("grid.prefetch")->minimum, 0);
  EXPECT_EQ(schema.Find("grid.prefetch")->maximum, 64);
  ASSERT_NE(schema.Find("grid.overlap"), nullptr);
  EXPECT_EQ(schema.Find("grid.overlap")->fallback, "yes");
  EXPECT_NE(schema.Find("grid.bucket_mib"), nullptr);
}

}  // namespace
}  // namespace trireme::parallel
