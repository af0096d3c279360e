// Rows of the table: speed-up, efficiency, causes of what was lost, the losses' agreement.
#include "rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace trireme::tasks {
namespace {

using testing::HasSubstr;

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
  EXPECT_NEAR(gain.lost.compute, 0.2 / 1.6, 1e-12);
  EXPECT_NEAR(gain.lost.imbalance, 0.08 / 1.6, 1e-12);
  EXPECT_NEAR(gain.lost.communication, 0.32 / 1.6, 1e-12);
  EXPECT_NEAR(gain.lost.Total(), 1 - gain.efficiency.value, 1e-12);
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
  EXPECT_NEAR(gain.lost.Total(), 1 - gain.efficiency.value, 1e-12);
  EXPECT_NEAR(gain.lost.compute, 0.2 / 1.3, 1e-12);
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

}  // namespace
}  // namespace trireme::tasks
