// Drawing the next token: greedy, temperature, top-k, top-p.
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/tasks/tasks.hpp"

namespace trireme::test {
namespace {

using tasks::Choose;
using tasks::GenerateOptions;

// Probabilities 0.1, 0.4, 0.2, 0.3 at temperature 1.
const std::vector<double> kLogits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

// Share of each token over a fine grid of draws.
std::vector<double> Shares(const GenerateOptions& options) {
  constexpr int kDraws = 100000;
  std::vector<double> shares(kLogits.size());
  for (int i = 1; i <= kDraws; ++i) {
    shares[static_cast<std::size_t>(Choose(kLogits, options, static_cast<double>(i) / kDraws))] +=
        1.0 / kDraws;
  }
  return shares;
}

TEST(Choose, TemperatureZeroIsGreedy) {
  GenerateOptions options;
  options.temperature = 0;
  for (double draw : {1e-7, 0.5, 1.0}) EXPECT_EQ(Choose(kLogits, options, draw), 1);
}

TEST(Choose, FollowsTheDistribution) {
  const std::vector<double> shares = Shares({});
  const double wanted[] = {0.1, 0.4, 0.2, 0.3};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(shares[i], wanted[i], 1e-4);
}

TEST(Choose, TopKKeepsTheLikeliest) {
  GenerateOptions options;
  options.top_k = 2;
  const std::vector<double> shares = Shares(options);
  EXPECT_NEAR(shares[1], 4.0 / 7, 1e-4);
  EXPECT_NEAR(shares[3], 3.0 / 7, 1e-4);
  EXPECT_EQ(shares[0] + shares[2], 0);
}

TEST(Choose, TopPKeepsTheFewestThatHoldP) {
  GenerateOptions options;
  options.top_p = 0.75;  // 0.4 + 0.3 is not enough: three tokens
  const std::vector<double> shares = Shares(options);
  EXPECT_EQ(shares[0], 0);
  EXPECT_NEAR(shares[2], 0.2 / 0.9, 1e-4);
}

TEST(Choose, AHighTemperatureFlattens) {
  GenerateOptions options;
  options.temperature = 1e6;
  for (double share : Shares(options)) EXPECT_NEAR(share, 0.25, 1e-3);
}

}  // namespace
}  // namespace trireme::test
