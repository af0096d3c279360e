// Scaling studies: points, rows, statistics, options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "rows.hpp"
#include "trireme/tasks/scaling.hpp"

namespace trireme::tasks {
namespace {

using testing::HasSubstr;

// Rows of the table: speed-up, efficiency, causes of what was lost, the losses' agreement.

constexpr auto kData = static_cast<std::size_t>(comm::Group::kData);

// A round of equal steps, whose waiting is all for the data group.
Round Made(const Split& split, double tokens, double loss) {
  Round round;
  round.seconds = {split.Total(), split.Total()};
  round.split = split;
  round.tokens = tokens;
  round.loss = loss;
  return round;
}

// One rank computes a second; four compute 0.3 each, of which one waits 0.02 for the slowest, and
// 0.08 for transfers.
Study Made(ScalingKind kind) {
  Study study;
  study.options.kinds = {kind};
  study.options.steps = 2;
  study.counts = {1, 4};
  study.points.resize(2);
  study.points[0].size = {1, 8};
  study.points[1].size = {4, kind == ScalingKind::kStrong ? 8 : 32};
  Split one, four;
  one.compute = 1;
  const double work = kind == ScalingKind::kStrong ? 1 : 4;
  four.compute = 0.3 * work;
  four.waited[kData] = 0.1;
  four.imbalance = 0.02;
  study.points[0].rounds = {Made(one, 100, 5), Made(one, 100, 5)};
  study.points[1].rounds = {Made(four, 100 * work, 5), Made(four, 100 * work, 5)};
  study.lines = {{kind, 0}, {kind, 1}};
  return study;
}

TEST(Rows, OfStrongScaling) {
  const Study study = Made(ScalingKind::kStrong);
  const std::vector<Row> rows = RowsOf(study);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_DOUBLE_EQ(rows[0].gain->speedup.value, 1);
  EXPECT_FALSE(rows[0].gain->serial);
  const Gain& gain = *rows[1].gain;
  EXPECT_DOUBLE_EQ(gain.speedup.value, 1 / 0.4);
  EXPECT_DOUBLE_EQ(gain.efficiency.value, 0.625);
  // (0.4 - 0.25) / 0.75.
  EXPECT_NEAR(gain.serial->value, 0.2, 1e-12);
  // Of 1.6 rank-seconds: 1.2 - 1 more computation, 0.08 and 0.32 of waiting.
  EXPECT_NEAR(gain.lost[0], 0.2 / 1.6, 1e-12);
  EXPECT_NEAR(gain.lost[1], 0.08 / 1.6, 1e-12);
  EXPECT_NEAR(gain.lost[2], 0.32 / 1.6, 1e-12);
  EXPECT_NEAR(std::accumulate(gain.lost.begin(), gain.lost.end(), 0.0), 1 - gain.efficiency.value,
              1e-12);
  ASSERT_TRUE(gain.speedup.interval);
  EXPECT_NEAR(gain.speedup.interval->low, 2.5, 1e-9);
}

// 4 x the tokens in 1.3 s: 4 / 1.3 times as fast, of 4.
TEST(Rows, OfWeakScaling) {
  const Study study = Made(ScalingKind::kWeak);
  const std::vector<Row> rows = RowsOf(study);
  const Gain& gain = *rows[1].gain;
  EXPECT_NEAR(gain.speedup.value, 4 / 1.3, 1e-12);
  EXPECT_NEAR(gain.efficiency.value, 1 / 1.3, 1e-12);
  EXPECT_FALSE(gain.serial);
  EXPECT_NEAR(std::accumulate(gain.lost.begin(), gain.lost.end(), 0.0), 1 - gain.efficiency.value,
              1e-12);
  EXPECT_NEAR(gain.lost[0], 0.2 / 1.3, 1e-12);
}

TEST(Rows, OfAStudyThatWasStopped) {
  Study study = Made(ScalingKind::kStrong);
  study.points[0].rounds.clear();
  const std::vector<Row> rows = RowsOf(study);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_FALSE(rows[0].gain);
  study = Made(ScalingKind::kStrong);
  study.points[1].rounds.pop_back();
  EXPECT_FALSE(RowsOf(study)[1].gain->speedup.interval) << "one pair";
}

TEST(Losses, MustAgreeBetweenCounts) {
  Study study = Made(ScalingKind::kStrong);
  EXPECT_TRUE(CompareLosses(RowsOf(study), kSameLoss).empty());
  for (Round& round : study.points[1].rounds) round.loss *= 1 + 0.9 * kSameLoss;
  EXPECT_TRUE(CompareLosses(RowsOf(study), kSameLoss).empty());
  for (Round& round : study.points[1].rounds) round.loss *= 1 + 0.9 * kSameLoss;
  const std::vector<std::string> faults = CompareLosses(RowsOf(study), kSameLoss);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults[0], HasSubstr("the loss on 4 ranks is 5.00009"));
  for (Round& round : study.points[1].rounds) round.loss = std::nan("");
  EXPECT_FALSE(CompareLosses(RowsOf(study), kSameLoss).empty());
}

TEST(Losses, HaveTheSameBitsInEveryRound) {
  Study study = Made(ScalingKind::kWeak);
  study.points[1].rounds[1].loss = std::nextafter(5.0, 6.0);
  const std::vector<std::string> faults = CompareLosses(RowsOf(study), kSameLoss);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults[0], HasSubstr("the same steps gave other bits"));
}

TEST(Table, HasACellForEachName) {
  Study study = Made(ScalingKind::kStrong);
  study.points[1].room.oversubscribed = true;
  std::istringstream lines(Csv(RowsOf(study), study));
  std::vector<std::ptrdiff_t> commas;
  for (std::string line; std::getline(lines, line);) {
    commas.push_back(std::count(line.begin(), line.end(), ','));
  }
  EXPECT_EQ(commas, std::vector<std::ptrdiff_t>(3, commas.at(0)));
  EXPECT_THAT(lines.str(), HasSubstr("strong,4,1,1,1,yes,"));
  EXPECT_THAT(lines.str(), HasSubstr(",speedup,speedup_low,speedup_high,"));
  EXPECT_THAT(lines.str(), HasSubstr(",seconds_exposed_key_value,"));
  EXPECT_THAT(lines.str(), HasSubstr(",0.4;0.4\n"));
}

// Statistics of a scaling study against tables and numbers computed by hand.

// Printed tables have three decimals.
TEST(StudentQuantile, IsThatOfTheTables) {
  EXPECT_NEAR(StudentQuantile(1), 12.706, 5e-4);
  EXPECT_NEAR(StudentQuantile(2), 4.303, 5e-4);
  EXPECT_NEAR(StudentQuantile(3), 3.182, 5e-4);
  EXPECT_NEAR(StudentQuantile(4), 2.776, 5e-4);
  EXPECT_NEAR(StudentQuantile(9), 2.262, 5e-4);
  EXPECT_NEAR(StudentQuantile(30), 2.042, 5e-4);
  EXPECT_NEAR(StudentQuantile(1e5), 1.960, 5e-4);
}

// Two degrees of freedom have a closed form: t = (2 p - 1) / sqrt(2 p (1 - p)), p = 0.975.
TEST(StudentQuantile, AgreesWithTheClosedForm) {
  EXPECT_NEAR(StudentQuantile(2), 0.95 / std::sqrt(2 * 0.975 * 0.025), 1e-8);
}

// Mean 3, deviation sqrt((4 + 1 + 0 + 1 + 4) / 4) = 1.5811, t(4) = 2.7764:
// half an interval is 2.7764 * 1.5811 / sqrt(5) = 1.9632.
TEST(IntervalOfMean, IsThatByHand) {
  const std::vector<double> values = {1, 2, 3, 4, 5};
  const auto interval = IntervalOfMean(values);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 3 - 1.9632, 1e-4);
  EXPECT_NEAR(interval->high, 3 + 1.9632, 1e-4);
}

TEST(IntervalOfMean, NeedsTwoValues) {
  EXPECT_FALSE(IntervalOfMean(std::vector<double>{}));
  EXPECT_FALSE(IntervalOfMean(std::vector<double>{1}));
  EXPECT_TRUE(IntervalOfMean(std::vector<double>{1, 1}));
}

// Logarithms of the ratios 2 and 8 are 1 and 3 times log 2: deviation sqrt(2) log 2, divided by
// sqrt(2); t(1) = 12.7062. The factor is 2^12.7062.
TEST(IntervalOfRatio, IsThatByHand) {
  const auto interval = IntervalOfRatio(4, std::vector<double>{2, 16}, std::vector<double>{1, 2});
  ASSERT_TRUE(interval);
  EXPECT_NEAR(std::log2(interval->high / 4), 12.7062, 1e-4);
  EXPECT_NEAR(std::log2(interval->low / 4), -12.7062, 1e-4);
}

// A machine that becomes slower changes no ratio of neighbours.
TEST(IntervalOfRatio, LeavesOutWhatPairsShare) {
  const auto interval =
      IntervalOfRatio(2, std::vector<double>{2, 4, 8}, std::vector<double>{1, 2, 4});
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 2, 1e-12);
  EXPECT_NEAR(interval->high, 2, 1e-12);
}

TEST(IntervalOfRatio, TakesThePairsThatThereAre) {
  EXPECT_FALSE(IntervalOfRatio(2, std::vector<double>{2, 4}, std::vector<double>{1}));
}

TEST(Median, IsBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(MedianOf({3, 1, 2}), 2);
  EXPECT_EQ(MedianOf({4, 1, 2, 10}), 3);
}

// By Amdahl's law a serial fraction f on p processors has the speed-up 1 / (f + (1 - f) / p).
TEST(KarpFlatt, FindsAmdahlsFraction) {
  EXPECT_NEAR(KarpFlatt(1 / (0.1 + 0.9 / 8), 8), 0.1, 1e-12);
  EXPECT_NEAR(KarpFlatt(2, 2), 0, 1e-12);
  EXPECT_NEAR(KarpFlatt(1, 4), 1, 1e-12);
  // (1/5 - 1/8) / (1 - 1/8) = 0.075 / 0.875.
  EXPECT_NEAR(KarpFlatt(5, 8), 0.085714, 1e-6);
  EXPECT_LT(KarpFlatt(2.1, 2), 0);
}

// Keys of [scaling], and the messages to those who mistype them.

class ScalingOptionsTest : public testing::Test {
 protected:
  ScalingOptionsTest() { DeclareScaling(schema_); }
  ScalingOptions Of(const std::vector<std::string>& keys) const {
    return ReadScaling(deck::Deck::Parse(schema_, "", "a.in", keys));
  }
  std::string Refusal(const std::vector<std::string>& keys) const {
    try {
      static_cast<void>(Of(keys));
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
    return "taken";
  }
  deck::Schema schema_;
};

TEST_F(ScalingOptionsTest, HaveDefaults) {
  const ScalingOptions options = Of({});
  EXPECT_TRUE(options.ranks.empty());
  EXPECT_EQ(options.kinds, std::vector{ScalingKind::kStrong});
  EXPECT_EQ(options.base_ranks, 0);
  EXPECT_GE(options.repeats, 2) << "intervals of confidence by default";
}

TEST_F(ScalingOptionsTest, ReadLists) {
  const ScalingOptions options = Of({"scaling.ranks=8, 1,2 ,4", "scaling.kind=weak,strong"});
  EXPECT_EQ(options.ranks, (std::vector{1, 2, 4, 8}));
  EXPECT_EQ(options.kinds, (std::vector{ScalingKind::kWeak, ScalingKind::kStrong}));
}

TEST_F(ScalingOptionsTest, RefuseWhatIsNoCount) {
  for (const char* text : {"0", "-1", "1,x", "2.5", "1,,2", "1,", "99999999999999999999"}) {
    EXPECT_THAT(Refusal({std::string("scaling.ranks=") + text}),
                HasSubstr("is not a number of ranks"))
        << text;
  }
  EXPECT_THAT(Refusal({"scaling.ranks=1,2,1"}), HasSubstr("1 is listed twice"));
}

TEST_F(ScalingOptionsTest, RefuseWhatIsNoKind) {
  EXPECT_THAT(Refusal({"scaling.kind=week"}), HasSubstr("'week' is not a kind"));
  EXPECT_THAT(Refusal({"scaling.kind=weak,weak"}), HasSubstr("twice"));
  EXPECT_THAT(Refusal({"scaling.kind="}), HasSubstr("no kind is named"));
  EXPECT_THAT(Refusal({"scaling.rank=2"}), HasSubstr("scaling.ranks"));
}

// Numbers of ranks and batches of a study, and the waiting for slow ranks.

using Counts = std::vector<int>;

TEST(DefaultCounts, ArePowersOfTwoAndTheWorld) {
  EXPECT_EQ(DefaultCounts(1, 8), (Counts{1, 2, 4, 8}));
  EXPECT_EQ(DefaultCounts(1, 6), (Counts{1, 2, 4, 6}));
  EXPECT_EQ(DefaultCounts(1, 1), (Counts{1}));
}

TEST(DefaultCounts, HoldWholeReplicas) {
  EXPECT_EQ(DefaultCounts(3, 12), (Counts{3, 6, 12}));
  EXPECT_EQ(DefaultCounts(4, 4), (Counts{4}));
}

TEST(Batch, StaysOrGrowsWithTheRanks) {
  EXPECT_EQ(BatchOf(ScalingKind::kStrong, 32, 8, 1), 32);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 32, 1, 1), 32);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 32, 8, 1), 256);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 32, 8, 2), 128);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 32, 2, 8), 8);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 30, 1, 8), 0) << "no whole number of windows";
}

// Ranks 0 and 1 wait 0 and 2 seconds in step 0, 1 and 0 in step 1: 3 seconds of 2 ranks and 2
// steps.
TEST(Imbalance, IsTheMeanWaitForTheSlowest) {
  const comm::GridShape data{.pipeline = 1, .data = 2, .context = 1, .tensor = 1};
  EXPECT_DOUBLE_EQ(Imbalance({5, 3, 3, 4}, data), 3.0 / 4);
  EXPECT_EQ(Imbalance({5, 3}, {}), 0) << "one rank waits for none";
}

TEST(Imbalance, ComparesRanksOfAStage) {
  const comm::GridShape stages{.pipeline = 2, .data = 1, .context = 1, .tensor = 1};
  EXPECT_EQ(Imbalance({5, 3}, stages), 0);
  const comm::GridShape both{.pipeline = 2, .data = 2, .context = 1, .tensor = 1};
  EXPECT_DOUBLE_EQ(Imbalance({5, 4, 2, 3}, both), (1.0 + 1.0) / 4);
}

}  // namespace
}  // namespace trireme::tasks
