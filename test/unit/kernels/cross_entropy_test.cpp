// Softmax and cross-entropy, from one class to a whole vocabulary.
#include "trireme/kernels/vocabulary_loss.hpp"

#include <cmath>
#include <limits>

#include "kernel_testing.hpp"

namespace trireme::test {
namespace {

constexpr double kCrossEntropyFp32 = 3e-6, kCrossEntropyFp64 = 1e-13;

class CrossEntropyTest : public KernelTest {
 protected:
  // Every third target masked; the first and the last class among the others.
  static std::vector<std::int32_t> Targets(std::int64_t rows, std::int64_t vocabulary) {
    std::vector<std::int32_t> targets;
    for (std::int64_t r = 0; r < rows; ++r) {
      targets.push_back(static_cast<std::int32_t>(r % 3 == 2   ? -1
                                                  : r % 3 == 1 ? vocabulary - 1
                                                               : r * 31 % vocabulary));
    }
    return targets;
  }
  void Check(const Array& x, double smoothing, double tolerance) const {
    const std::vector<std::int32_t> targets = Targets(x.rows, x.columns);
    const LossResult want = test::CrossEntropy(x, targets, smoothing);
    const Operand logits(GetParam(), x), loss_only(GetParam(), x);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> losses(targets.size(), nan), again(targets.size(), nan);
    kernels::CrossEntropy(Stream(), loss_only.View(), targets.data(), smoothing, false,
                          again.data());
    kernels::CrossEntropy(Stream(), logits.View(), targets.data(), smoothing, true, losses.data());
    double sum = 0;
    for (std::size_t r = 0; r < targets.size(); ++r) {
      ASSERT_EQ(losses[r], again[r]) << "with and without the gradient";
      sum += losses[r];
      const Array row(1, x.columns,
                      {x.values.begin() + static_cast<std::ptrdiff_t>(r) * x.columns,
                       x.values.begin() + static_cast<std::ptrdiff_t>(r + 1) * x.columns});
      const double one = test::CrossEntropy(row, {targets[r]}, smoothing).sum;
      ASSERT_NEAR(losses[r], one, tolerance * (1 + std::abs(one))) << "row " << r;
    }
    EXPECT_NEAR(sum, want.sum, tolerance * (1 + std::abs(want.sum)));
    if (x.columns == 1) {  // one class: the gradient is zero up to rounding
      for (const double g : logits.Values().values) EXPECT_NEAR(g, 0, tolerance);
    } else {
      ExpectClose(logits.Values(), want.gradient, tolerance,
                  std::to_string(x.rows) + " x " + std::to_string(x.columns));
    }
    for (std::size_t r = 0; r < targets.size(); ++r) {
      if (targets[r] >= 0) continue;
      EXPECT_EQ(losses[r], 0);
      const Array gradient = logits.Values();
      for (std::int64_t v = 0; v < x.columns; ++v) {
        ASSERT_EQ(gradient(static_cast<std::int64_t>(r), v), 0) << "masked row";
      }
    }
  }
};

TEST_P(CrossEntropyTest, OddSizes) {
  for (const std::int64_t rows : {1, 3, 17, 33}) {
    for (const std::int64_t vocabulary : {1, 3, 17, 33, 128, 1000}) {
      for (const double smoothing : {0.0, 0.1}) {
        Check(Random(rows, vocabulary, 1, 5), smoothing,
              Tolerance(kCrossEntropyFp32, kCrossEntropyFp64));
      }
    }
  }
}

TEST_P(CrossEntropyTest, AWholeVocabulary) {
  for (const double smoothing : {0.0, 0.1}) {
    Check(Random(7, 33278, 1, 8), smoothing, Tolerance(kCrossEntropyFp32, kCrossEntropyFp64));
  }
}

TEST_P(CrossEntropyTest, LargeLogits) {
  Check(Random(9, 65, 1, 500), 0, Tolerance(2e-4, 1e-12));
  Array x = Random(4, 65, 2);
  for (double& value : x.values) value = static_cast<double>(static_cast<float>(value - 10000));
  Check(x, 0.1, Tolerance(2e-3, 1e-11));
}

// If the target is nearly certain, the loss is tiny and its relative accuracy still counts.
TEST_P(CrossEntropyTest, ACertainPrediction) {
  Array x(1, 5, {12, 0, 0, 0, 0});
  const std::int32_t target = 0;
  double loss = -1;
  const Operand logits(GetParam(), x);
  kernels::CrossEntropy(Stream(), logits.View(), &target, 0, true, &loss);
  EXPECT_NEAR(loss, std::log1p(4 * std::exp(-12.0)), Tolerance(1e-6, 1e-14));
  EXPECT_NEAR(logits.Values()(0, 1), std::exp(-12.0) / (1 + 4 * std::exp(-12.0)),
              Tolerance(1e-11, 1e-19));
}

TEST_P(CrossEntropyTest, ANumberThatIsNoneShowsInTheLoss) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const std::int64_t at : {0, 1, 40, 64}) {
      Array x = Random(1, 65, 1);
      x(0, at) = bad;
      const std::int32_t target = 1;
      double loss = 0;
      const Operand logits(GetParam(), x);
      kernels::CrossEntropy(Stream(), logits.View(), &target, 0, true, &loss);
      EXPECT_FALSE(std::isfinite(loss)) << bad << " at " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, CrossEntropyTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
