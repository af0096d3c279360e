// The curve of a run: a bounded number of bars, whatever the number of steps.
#include "run_state.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::tools {
namespace {

TEST(Curve, RisesAndFalls) {
  Curve curve;
  for (int step = 1; step <= 8; ++step) curve.Add(step, step);
  EXPECT_EQ(curve.Bars(8, true), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(curve.Bars(8, false), "_.-=+*%#");
  EXPECT_EQ(curve.Bars(100, true), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(curve.Bars(4, true), "▁▃▆█");
  EXPECT_EQ(curve.Bars(0, true), "");
  EXPECT_EQ(curve.Bars(-3, true), "");
}

TEST(Curve, OfOneValueAndOfNone) {
  Curve curve;
  EXPECT_EQ(curve.Bars(10, true), "");
  curve.Add(1, 3);
  EXPECT_EQ(curve.Bars(10, true), "▁");
}

TEST(Curve, WhatIsNotFiniteIsSeen) {
  Curve curve;
  for (int step = 1; step <= 100'000; ++step) curve.Add(step, step == 50'000 ? NAN : 1.0);
  const std::string bars = curve.Bars(10, false);
  EXPECT_EQ(bars.size(), 10U);
  EXPECT_EQ(std::count(bars.begin(), bars.end(), '!'), 1);
}

TEST(Curve, AMillionStepsKeepTheirShape) {
  Curve curve;
  for (int step = 1; step <= 1'000'000; ++step) curve.Add(step, step <= 500'000 ? 8 : 1);
  EXPECT_EQ(curve.Bars(8, false), "####____");
}

TEST(Curve, AnEarlierStepTakesBackLaterOnes) {
  Curve curve;
  for (int step = 1; step <= 8; ++step) curve.Add(step, step);
  curve.Add(3, 8);
  EXPECT_EQ(curve.Bars(8, false), "_.#");
}

}  // namespace
}  // namespace trireme::tools
