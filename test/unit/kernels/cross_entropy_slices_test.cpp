// Cross-entropy on slices of the vocabulary, for every cut, against the whole vocabulary.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_testing.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::test {
namespace {

constexpr double kCrossEntropySlicesFp32 = 3e-6, kCrossEntropySlicesFp64 = 2e-14;
constexpr std::int64_t kVocabulary = 101;
constexpr std::int64_t kValues = 4;  // statistics a row

struct Sliced {
  Array gradient;                           // [rows, vocabulary], joined
  Array statistics;                         // [parts * rows, 4]
  std::vector<std::vector<double>> losses;  // of each part
};

// Targets in every slice of every cut; every fifth masked.
std::vector<std::int32_t> Targets(std::int64_t rows) {
  std::vector<std::int32_t> targets;
  for (std::int64_t r = 0; r < rows; ++r) {
    targets.push_back(
        r % 5 == 3 ? -1 : static_cast<std::int32_t>((r * 37 + kVocabulary - 1) % kVocabulary));
  }
  return targets;
}

Sliced InSlices(const Setting& setting, const Array& x, const std::vector<std::int32_t>& targets,
                double smoothing, bool gradient, int parts) {
  Sliced result{Poison(x.rows, x.columns), Poison(parts * x.rows, kValues), {}};
  std::vector<Operand> slices;
  double* statistics = result.statistics.values.data();
  for (int part = 0; part < parts; ++part) {
    const Part slice = PartOf(x.columns, part, parts);
    slices.emplace_back(setting, SliceOf(x, {0, x.rows}, slice));
    kernels::SoftmaxStatistics(setting.Stream(), slices.back().View(), targets.data(),
                               static_cast<std::int32_t>(slice.begin),
                               statistics + part * x.rows * kValues);
  }
  for (int part = 0; part < parts; ++part) {
    const Part slice = PartOf(x.columns, part, parts);
    const Operand& logits = slices[static_cast<std::size_t>(part)];
    std::vector<double> losses(targets.size(), std::numeric_limits<double>::quiet_NaN());
    kernels::CrossEntropySlice(setting.Stream(), logits.View(), targets.data(),
                               static_cast<std::int32_t>(slice.begin), x.columns, smoothing,
                               gradient, statistics, parts, part, losses.data());
    PlaceSlice(logits.Values(), 0, slice.begin, result.gradient);
    result.losses.push_back(losses);
  }
  return result;
}

class CrossEntropySlicesTest : public KernelTest {
 protected:
  // Every cut of x against the reference and the kernel for a whole vocabulary.
  void Check(const Array& x, double smoothing, double tolerance) const {
    const std::vector<std::int32_t> targets = Targets(x.rows);
    const LossResult want = test::CrossEntropy(x, targets, smoothing);
    const Operand fused(GetParam(), x);
    std::vector<double> fused_losses(targets.size());
    kernels::CrossEntropy(Stream(), fused.View(), targets.data(), smoothing, true,
                          fused_losses.data());
    for (int parts = 1; parts <= 8; ++parts) {
      const std::string what =
          std::to_string(x.rows) + " rows in " + std::to_string(parts) + " parts";
      const Sliced got = InSlices(GetParam(), x, targets, smoothing, true, parts);
      ExpectClose(got.gradient, want.gradient, tolerance, what);
      ExpectClose(got.gradient, fused.Values(), tolerance, what + " and the whole");
      double sum = 0;
      for (std::size_t r = 0; r < targets.size(); ++r) {
        const double loss = got.losses[0][r], allowed = tolerance * std::abs(fused_losses[r]);
        sum += loss;
        EXPECT_LE(std::abs(loss - fused_losses[r]), allowed) << what << ", row " << r;
        for (const auto& each : got.losses) ASSERT_EQ(each[r], loss) << what << ", row " << r;
        if (targets[r] >= 0) continue;
        EXPECT_EQ(loss, 0) << what;
        for (std::int64_t v = 0; v < x.columns; ++v) {
          ASSERT_EQ(got.gradient(static_cast<std::int64_t>(r), v), 0) << what << ", masked row";
        }
      }
      EXPECT_LE(std::abs(sum - want.sum), tolerance * want.sum) << what;
      EXPECT_EQ(InSlices(GetParam(), x, targets, smoothing, false, parts).losses, got.losses)
          << what << ": with and without the gradient";
    }
  }
};

TEST_P(CrossEntropySlicesTest, EveryCut) {
  for (const std::int64_t rows : {0, 1, 7, 33}) {
    for (const double smoothing : {0.0, 0.1}) {
      Check(Random(rows, kVocabulary, 1, 5), smoothing,
            Tolerance(kCrossEntropySlicesFp32, kCrossEntropySlicesFp64));
    }
  }
}

// Slices whose largest logits lie hundreds apart: no exponential overflows or is lost.
TEST_P(CrossEntropySlicesTest, SlicesOfDifferentHeight) {
  Array x = Random(9, kVocabulary, 2);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t v = 0; v < kVocabulary; ++v) {
      x(r, v) = static_cast<double>(static_cast<float>(x(r, v) + static_cast<double>(v * r % 600)));
    }
  }
  for (const double smoothing : {0.0, 0.1}) Check(x, smoothing, Tolerance(1e-4, 1e-12));
}

TEST_P(CrossEntropySlicesTest, StatisticsOfASlice) {
  const std::int64_t rows = 33;
  const Array x = Random(rows, kVocabulary, 3, 5);
  const std::vector<std::int32_t> targets = Targets(rows);
  for (int parts = 1; parts <= 8; ++parts) {
    const Sliced got = InSlices(GetParam(), x, targets, 0, false, parts);
    Array want(parts * rows, kValues);
    for (int part = 0; part < parts; ++part) {
      const Part slice = PartOf(kVocabulary, part, parts);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int32_t target = targets[static_cast<std::size_t>(r)];
        if (target < 0) continue;  // zeros
        const std::int64_t row = part * rows + r;
        want(row, 0) = x(r, slice.begin);
        for (std::int64_t v = slice.begin; v < slice.end; ++v) {
          want(row, 0) = std::max(want(row, 0), x(r, v));
          want(row, 3) += x(r, v);
          if (v == target) want(row, 2) = x(r, v);
        }
        for (std::int64_t v = slice.begin; v < slice.end; ++v) {
          want(row, 1) += std::exp(x(r, v) - want(row, 0));
        }
      }
    }
    for (const std::int64_t exact : {0, 2}) {
      const Part column{exact, exact + 1};
      EXPECT_EQ(SliceOf(got.statistics, {0, parts * rows}, column).values,
                SliceOf(want, {0, parts * rows}, column).values);
    }
    ExpectClose(got.statistics, want, Tolerance(kCrossEntropySlicesFp32, kCrossEntropySlicesFp64),
                std::to_string(parts) + " parts");
  }
}

TEST_P(CrossEntropySlicesTest, TheSameBitsForAnyNumberOfThreads) {
  const Array x = Random(33, kVocabulary, 4, 5);
  const std::vector<std::int32_t> targets = Targets(x.rows);
  Setting one = GetParam(), two = GetParam();
  one.threads = 1;
  two.threads = 2;
  for (int parts = 1; parts <= 8; ++parts) {
    const Sliced a = InSlices(one, x, targets, 0.1, true, parts);
    const Sliced b = InSlices(two, x, targets, 0.1, true, parts);
    EXPECT_EQ(a.gradient.values, b.gradient.values);
    EXPECT_EQ(a.statistics.values, b.statistics.values);
    EXPECT_EQ(a.losses, b.losses);
  }
}

// The loss of such a row is not finite, in whichever slice it stands and on every rank; the rows
// beside it do not change.
TEST_P(CrossEntropySlicesTest, ANumberThatIsNoneShowsInTheLoss) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Array good = Random(3, kVocabulary, 5);
  const std::vector<std::int32_t> targets = {1, 50, 100};
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const std::int64_t at : {0, 1, 49, 50, 51, 99, 100}) {
      for (const int parts : {1, 2, 5, 8}) {
        for (const double smoothing : {0.0, 0.1}) {
          Array x = good;
          x(1, at) = bad;
          const Sliced got = InSlices(GetParam(), x, targets, smoothing, true, parts);
          for (const std::vector<double>& losses : got.losses) {
            EXPECT_FALSE(std::isfinite(losses[1])) << bad << " at " << at << " of " << parts;
            EXPECT_TRUE(std::isfinite(losses[0]) && std::isfinite(losses[2]));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, CrossEntropySlicesTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
