// Sharing out blocks over stages: never worse than the best of all ways.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "trireme/base/error.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> Counts(const std::vector<Part>& parts) {
  std::vector<std::int64_t> counts;
  for (const Part& part : parts) counts.push_back(part.Size());
  return counts;
}

std::vector<std::int64_t> Balanced(std::int64_t layers, int stages, double embedding, double head) {
  return Counts(BalanceStages(layers, stages, 1, embedding, head));
}

double Dearest(const std::vector<std::int64_t>& counts, double block, double embedding,
               double head) {
  double dearest = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    dearest = std::max(dearest, (s == 0 ? embedding : 0) + (s + 1 == counts.size() ? head : 0) +
                                    static_cast<double>(counts[s]) * block);
  }
  return dearest;
}

// Every way to share out the layers.
double BruteForce(std::int64_t layers, int stages, double block, double embedding, double head) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stages), 0);
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(std::size_t, std::int64_t)> fill = [&](std::size_t stage,
                                                                  std::int64_t left) {
    if (stage + 1 == counts.size()) {
      counts[stage] = left;
      best = std::min(best, Dearest(counts, block, embedding, head));
      return;
    }
    for (counts[stage] = 1; counts[stage] <= left; ++counts[stage]) {
      fill(stage + 1, left - counts[stage]);
    }
  };
  fill(0, layers);
  return best;
}

TEST(BalanceStages, IsAsGoodAsTheBestOfAllWays) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> cost(0, 4);
  for (int stages = 1; stages <= 6; ++stages) {
    for (std::int64_t layers = std::max(stages - 1, 1); layers <= 12; ++layers) {
      for (int draw = 0; draw < 10; ++draw) {
        const double block = draw == 0 ? 0 : cost(random), embedding = cost(random);
        const double head = cost(random);
        const auto parts = BalanceStages(layers, stages, block, embedding, head);
        const auto counts = Counts(parts);
        ASSERT_EQ(static_cast<int>(counts.size()), stages);
        std::int64_t end = 0;
        for (const Part& part : parts) {
          EXPECT_EQ(part.begin, end);
          end = part.end;
        }
        EXPECT_EQ(end, layers);
        for (int s = 0; s + 1 < stages; ++s) EXPECT_GE(counts[static_cast<std::size_t>(s)], 1);
        EXPECT_DOUBLE_EQ(Dearest(counts, block, embedding, head),
                         BruteForce(layers, stages, block, embedding, head))
            << layers << " layers, " << stages << " stages, " << block << " " << embedding << " "
            << head;
      }
    }
  }
}

TEST(BalanceStages, TiesAreEvenAndLeaveTheLastStageSmaller) {
  EXPECT_THAT(Balanced(8, 4, 0, 0), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(Balanced(7, 4, 0, 0), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(Balanced(9, 4, 0, 0), ElementsAre(3, 2, 2, 2));
  EXPECT_THAT(Balanced(9, 4, 0.5, 0), ElementsAre(2, 3, 2, 2));  // 3.5 on the first otherwise
  EXPECT_THAT(Balanced(6, 4, 0, 0.5), ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(Balanced(12, 4, 0, 3), ElementsAre(4, 4, 3, 1));
  EXPECT_THAT(Balanced(3, 4, 0, 10), ElementsAre(1, 1, 1, 0));  // the head alone
  EXPECT_THAT(Balanced(6, 3, 0, 2), ElementsAre(3, 2, 1));
  EXPECT_THAT(Balanced(5, 1, 1, 1), ElementsAre(5));
}

TEST(BalanceStages, RefusesMoreStagesThanParts) {
  EXPECT_THROW(BalanceStages(2, 4, 1, 0, 0), Error);
}

}  // namespace
}  // namespace trireme::parallel
