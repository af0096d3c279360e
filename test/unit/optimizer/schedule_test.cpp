// The learning-rate schedule at its corners.
#include "trireme/train/optimizer.hpp"

#include <gtest/gtest.h>

namespace trireme::test {
namespace {

using train::Decay;
using train::Schedule;

Schedule Make(Decay decay) {
  Schedule schedule;
  schedule.steps = 100;
  schedule.warmup_steps = 10;
  schedule.decay = decay;
  schedule.peak = 2.0;
  schedule.final_fraction = 0.1;
  schedule.decay_fraction = 0.2;
  return schedule;
}

TEST(Schedule, WarmsUpLinearlyFromTheFirstStep) {
  for (const Decay decay : {Decay::kConstant, Decay::kCosine, Decay::kLinear, Decay::kWsd}) {
    const Schedule schedule = Make(decay);
    EXPECT_DOUBLE_EQ(schedule.Rate(1), 0.2);
    EXPECT_DOUBLE_EQ(schedule.Rate(5), 1.0);
    EXPECT_DOUBLE_EQ(schedule.Rate(10), 2.0);
  }
}

TEST(Schedule, EndsAtItsFinalFraction) {
  for (const Decay decay : {Decay::kCosine, Decay::kLinear, Decay::kWsd}) {
    EXPECT_NEAR(Make(decay).Rate(100), 0.2, 1e-15);
  }
  EXPECT_DOUBLE_EQ(Make(Decay::kConstant).Rate(100), 2.0);
}

TEST(Schedule, IsHalfWayInTheMiddle) {
  // Steps 10 to 100: the middle is 55.
  EXPECT_NEAR(Make(Decay::kCosine).Rate(55), 2.0 * 0.55, 1e-12);
  EXPECT_NEAR(Make(Decay::kLinear).Rate(55), 2.0 * 0.55, 1e-12);
  // wsd: constant up to step 80, then linear.
  EXPECT_DOUBLE_EQ(Make(Decay::kWsd).Rate(80), 2.0);
  EXPECT_NEAR(Make(Decay::kWsd).Rate(90), 2.0 * 0.55, 1e-12);
}

TEST(Schedule, MayBeShorterThanItsWarmUp) {
  Schedule schedule = Make(Decay::kCosine);
  schedule.steps = 4;
  EXPECT_DOUBLE_EQ(schedule.Rate(4), 0.8);
}

TEST(Schedule, WithoutWarmUpStartsBelowThePeakOnly) {
  Schedule schedule = Make(Decay::kLinear);
  schedule.warmup_steps = 0;
  EXPECT_LT(schedule.Rate(1), schedule.peak);
  EXPECT_GT(schedule.Rate(1), 0.97 * schedule.peak);
}

deck::Deck Parse(const deck::Schema& schema, const std::vector<std::string>& keys) {
  return deck::Deck::Parse(schema, "", "test.in", keys);
}

// With 320 steps in the deck's epochs.
std::int64_t StepsOf(const deck::Deck& deck) {
  return train::MakeSchedule(train::ReadSchedule(deck), 1, 320).steps;
}

TEST(Schedule, EpochsBecomeSteps) {
  deck::Schema schema;
  train::DeclareOptimizerAndSchedule(schema);
  EXPECT_EQ(StepsOf(Parse(schema, {"schedule.epochs=2.5"})), 320);
  EXPECT_EQ(StepsOf(Parse(schema, {})), 320);
  EXPECT_EQ(StepsOf(Parse(schema, {"schedule.steps=20"})), 20);
}

TEST(Schedule, StepsOnTheCommandLineReplaceTheDecksEpochs) {
  deck::Schema schema;
  train::DeclareOptimizerAndSchedule(schema);
  const auto deck =
      deck::Deck::Parse(schema, "[schedule]\nepochs = 3\n", "a.in", {"schedule.steps=20"});
  EXPECT_EQ(StepsOf(deck), 20);
}

TEST(Schedule, StopAtKeepsTheRatesOfTheWhole) {
  Schedule whole = Make(Decay::kCosine), part = whole;
  part.stop_at = 40;
  EXPECT_EQ(part.Last(), 40);
  EXPECT_EQ(whole.Last(), 100);
  for (int step = 1; step <= 40; ++step) EXPECT_EQ(part.Rate(step), whole.Rate(step));
}

}  // namespace
}  // namespace trireme::test
