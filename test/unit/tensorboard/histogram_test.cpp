// Histograms against a plain search of the limits, and put together from parts.
#include "trireme/report/tensorboard.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace trireme::report {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t SearchedBucket(double value) {
  const std::vector<double>& limits = Histogram::Limits();
  const auto above = std::upper_bound(limits.begin(), limits.end(), value);
  return std::min<std::size_t>(above - limits.begin(), limits.size() - 1);
}

std::size_t BucketOf(double value) {
  Histogram histogram;
  histogram.Add(value);
  const auto& counts = histogram.Counts();
  return std::find(counts.begin(), counts.end(), 1.0) - counts.begin();
}

TEST(Histogram, LimitsAreTensorFlows) {
  const std::vector<double>& limits = Histogram::Limits();
  EXPECT_EQ(limits.size(), 1551U);
  EXPECT_TRUE(std::is_sorted(limits.begin(), limits.end()));
  EXPECT_EQ(limits.front(), -std::numeric_limits<double>::max());
  EXPECT_EQ(limits[775], 0);
  EXPECT_EQ(limits[776], 1e-12);
  EXPECT_NEAR(limits[777], 1.1e-12, 1e-24);
}

TEST(Histogram, FindsTheBucketThatASearchFinds) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-320, 308), sign(-1, 1);
  for (int i = 0; i < 200000; ++i) {
    const double value = std::copysign(std::pow(10, exponent(random)), sign(random));
    ASSERT_EQ(BucketOf(value), SearchedBucket(value)) << value;
    const auto narrow = static_cast<float>(value);
    ASSERT_EQ(BucketOf(narrow), SearchedBucket(narrow)) << narrow;
  }
}

// Limits themselves, their neighbours, and the ends of the range.
TEST(Histogram, PutsLimitsIntoTheBucketAboveThem) {
  for (const double limit : Histogram::Limits()) {
    for (const double value :
         {limit, std::nextafter(limit, kInfinity), std::nextafter(limit, -kInfinity)}) {
      ASSERT_EQ(BucketOf(value), SearchedBucket(value)) << value;
    }
  }
  EXPECT_EQ(BucketOf(0.0), 776U);
  EXPECT_EQ(BucketOf(-0.0), 776U);
  EXPECT_EQ(BucketOf(kInfinity), 1550U);
  EXPECT_EQ(BucketOf(-kInfinity), 0U);
}

TEST(Histogram, SumsAreOfAllValues) {
  Histogram histogram;
  for (const double value : {1.0, -2.0, 1e-30, 0.5}) histogram.Add(value);
  histogram.Add(std::nan(""));
  EXPECT_EQ(histogram.Count(), 4);
  EXPECT_EQ(histogram.Min(), -2);
  EXPECT_EQ(histogram.Max(), 1);
  EXPECT_EQ(histogram.Sum(), -0.5);
  EXPECT_EQ(histogram.Squares(), 5.25);
}

// The numbers that ranks send add up to the histogram of all values, bit for bit.
TEST(Histogram, PartsMakeUpTheWhole) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::array<Histogram, 3> parts;
  Histogram whole;
  for (int i = 0; i < 10000; ++i) {
    const double value = normal(random);
    parts[i * i % 3].Add(value);
    whole.Add(value);
  }
  std::vector<double> sum(Histogram::Addable(), 0), one(Histogram::Addable());
  std::array<double, 2> maxima = {-kInfinity, -kInfinity}, extremes{};
  for (const Histogram& part : parts) {
    part.Pack(one, extremes);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
    for (std::size_t i = 0; i < 2; ++i) maxima[i] = std::max(maxima[i], extremes[i]);
  }
  const Histogram joined = Histogram::Unpack(sum, maxima);
  EXPECT_EQ(joined.Counts(), whole.Counts());
  EXPECT_EQ(joined.Min(), whole.Min());
  EXPECT_EQ(joined.Max(), whole.Max());
  EXPECT_EQ(joined.Sum(), whole.Sum());
  EXPECT_EQ(joined.Squares(), whole.Squares());
}

// Copies of a tensor share the counting, and whatever part of it a rank holds.
TEST(HistogramsOf, CountsEachElementOnce) {
  std::vector<float> values(200000);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  const auto block = [&](std::int64_t begin, std::int64_t end, int replica, int replicas) {
    return kernels::StateBlock{.name = "w",
                               .shape = {200000},
                               .dtype = Dtype::kFloat32,
                               .begin = begin,
                               .end = end,
                               .data = values.data() + begin,
                               .replica = replica,
                               .replicas = replicas};
  };
  const auto count = [](const kernels::StateBlock& part) {
    const std::vector<kernels::StateBlock> blocks = {part};
    return HistogramsOf({}, blocks, {}, "weights/").front();
  };
  const NamedHistogram whole = count(block(0, 200000, 0, 1));
  EXPECT_EQ(whole.name, "weights/w");
  EXPECT_EQ(whole.histogram.Count(), 200000);
  double sum = 0, squares = 0;
  for (const auto& part : {block(0, 123456, 0, 2), block(123456, 200000, 0, 2),
                           block(0, 123456, 1, 2), block(123456, 200000, 1, 2)}) {
    const NamedHistogram of_part = count(part);
    sum += of_part.histogram.Count();
    squares += of_part.histogram.Squares();
  }
  EXPECT_EQ(sum, 200000);
  EXPECT_NEAR(squares, whole.histogram.Squares(), 1e-9 * squares);
}

TEST(HistogramsOf, ReadsAndDivides) {
  std::vector<double> values = {2, 4, 6};
  const std::vector<kernels::StateBlock> blocks = {
      {.name = "g", .shape = {3}, .dtype = Dtype::kFloat64, .begin = 0, .end = 3, .data = nullptr}};
  const auto read = [&](const kernels::StateBlock&, std::int64_t first, std::int64_t last,
                        void* to) {
    std::copy(values.begin() + first, values.begin() + last, static_cast<double*>(to));
  };
  const Histogram histogram = HistogramsOf({}, blocks, read, "", 2).front().histogram;
  EXPECT_EQ(histogram.Sum(), 6);
  EXPECT_EQ(histogram.Squares(), 14);
  EXPECT_EQ(histogram.Max(), 3);
}

}  // namespace
}  // namespace trireme::report
