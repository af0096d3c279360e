// Fit: a known machine is found again from the steps that it would take; least squares without
// negative numbers.
#include "fit.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::predict {
namespace {

predict::Machine Known() {
  predict::Machine machine;
  machine.fp64 = {.peak = 40e9, .efficiency = 0.5, .half = 12};
  machine.fp32 = {.peak = 100e9, .efficiency = 0.8, .half = 24};
  machine.attention = 0.3;
  machine.memory = 20e9;
  machine.kernel_seconds = 2e-6;
  machine.step_seconds = 3e-4;
  return machine;
}

// Steps of models in different sizes, as one rank computes them.
std::vector<Work> Works(Dtype type) {
  std::vector<Work> works;
  for (const double dim : {32.0, 64.0, 128.0, 256.0, 768.0}) {
    for (const double tokens : {16.0, 512.0, 4096.0}) {
      Work work;
      work.type = type;
      for (int i = 0; i < 6; ++i) {
        work.products.push_back({tokens, 4 * dim, dim});
        work.products.push_back({tokens, dim, 4 * dim});
        work.products.push_back({dim, 4 * dim, tokens});
      }
      work.attention_flops = 4 * dim * tokens * std::sqrt(tokens);
      work.bytes = 60 * tokens * dim + 200 * dim * dim;
      work.kernels = 40 + dim / 16;
      works.push_back(work);
    }
  }
  return works;
}

std::vector<Observation> Observed(const predict::Machine& machine) {
  std::vector<Observation> observations;
  for (const Dtype type : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const Work& work : Works(type)) observations.push_back({work, SecondsOf(work, machine)});
  }
  return observations;
}

TEST(Fit, FindsAMachineAgain) {
  const predict::Machine known = Known();
  predict::Machine found;
  found.fp64.peak = known.fp64.peak;
  found.fp32.peak = known.fp32.peak;
  Fit(Observed(known), found);
  EXPECT_NEAR(found.fp32.efficiency, known.fp32.efficiency, 1e-6);
  EXPECT_NEAR(found.fp64.efficiency, known.fp64.efficiency, 1e-6);
  EXPECT_EQ(found.fp32.half, known.fp32.half);
  EXPECT_EQ(found.fp64.half, known.fp64.half);
  EXPECT_NEAR(found.attention, known.attention, 1e-6);
  EXPECT_NEAR(found.memory / known.memory, 1, 1e-6);
  EXPECT_NEAR(found.kernel_seconds, known.kernel_seconds, 1e-10);
  EXPECT_NEAR(found.step_seconds, known.step_seconds, 1e-8);
}

// Steps that are faster than the measured peak raise it: shares stay at most 1, times as they were.
TEST(Fit, RaisesAPeakThatWasMeasuredTooLow) {
  const predict::Machine known = Known();
  predict::Machine found;
  found.fp64.peak = 10e9;
  found.fp32.peak = 25e9;
  const std::vector<Observation> observations = Observed(known);
  Fit(observations, found);
  EXPECT_LE(found.fp32.efficiency, 1);
  EXPECT_LE(found.fp64.efficiency, 1);
  EXPECT_LE(found.attention, 1);
  EXPECT_NEAR(found.fp32.peak * found.fp32.efficiency / 80e9, 1, 1e-6);
  for (const Observation& each : observations) {
    EXPECT_NEAR(SecondsOf(each.work, found) / each.seconds, 1, 1e-6);
  }
}

TEST(LeastSquares, HasNoNegativeNumbers) {
  // Exactly 2 x - y, which the best x and y >= 0 do not meet.
  const std::vector<std::vector<double>> rows = {{0.5, 0.001}, {1, 1.0}, {0.75, 0.5}};
  const std::vector<double> x = LeastSquares(rows);
  ASSERT_EQ(x.size(), 2U);
  EXPECT_GT(x[0], 0);
  EXPECT_EQ(x[1], 0);
  // One column alone: the sum of its numbers over that of its squares.
  EXPECT_NEAR(x[0], 2.25 / 1.8125, 1e-12);
}

TEST(LeastSquares, SolvesWhatHasASolution) {
  const std::vector<double> x = LeastSquares({{0.2, 0.3}, {0.4, 0.1}, {0.3, 0.2}});
  EXPECT_NEAR(0.2 * x[0] + 0.3 * x[1], 1, 1e-9);
  EXPECT_NEAR(0.4 * x[0] + 0.1 * x[1], 1, 1e-9);
}

}  // namespace
}  // namespace trireme::predict
