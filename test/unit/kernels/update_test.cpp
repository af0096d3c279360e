// Updates of parameters, and products of matrices.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_testing.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::test {
namespace {

using kernels::Form;
using kernels::MatrixMultiply;

// AdamW, gradient descent and the sum of squares for the gradient norm.

constexpr double kFp32 = 1e-6, kFp64 = 1e-14;
constexpr std::int64_t kCounts[] = {1, 3, 17, 33, 128, 33278};

// Flat storage: the settings without padding.
std::vector<Setting> DenseSettings() {
  std::vector<Setting> settings;
  for (const Setting& setting : AllSettings()) {
    if (setting.padding == 0) settings.push_back(setting);
  }
  return settings;
}

class UpdateTest : public KernelTest {
 protected:
  // A range of one operand each; moments where they are.
  static kernels::UpdateRange RangeOf(double decay, const Operand& gradients, const Operand& values,
                                      const Operand* first = nullptr,
                                      const Operand* second = nullptr) {
    return {gradients.View().columns,
            decay,
            gradients.View().data,
            values.View().data,
            first == nullptr ? nullptr : first->View().data,
            second == nullptr ? nullptr : second->View().data};
  }
  Dtype Type() const { return GetParam().dtype; }
};

TEST_P(UpdateTest, AdamWOverThreeSteps) {
  constexpr double kRate = 3e-3, kBeta1 = 0.9, kBeta2 = 0.98, kEpsilon = 1e-8, kDecay = 0.1;
  constexpr double kScale = 0.125;
  for (const std::int64_t count : kCounts) {
    Array w = Random(1, count, 1), m(1, count), v(1, count);
    const Operand values(GetParam(), w), first(GetParam(), m), second(GetParam(), v);
    for (int step = 1; step <= 3; ++step) {
      const Array g = Random(1, count, static_cast<std::uint32_t>(10 + step), 8);
      for (std::int64_t i = 0; i < count; ++i) {
        const double gradient = kScale * g(0, i);
        m(0, i) = kBeta1 * m(0, i) + (1 - kBeta1) * gradient;
        v(0, i) = kBeta2 * v(0, i) + (1 - kBeta2) * gradient * gradient;
        const double mean = m(0, i) / (1 - std::pow(kBeta1, step));
        const double square = v(0, i) / (1 - std::pow(kBeta2, step));
        w(0, i) -= kRate * (mean / (std::sqrt(square) + kEpsilon) + kDecay * w(0, i));
      }
      const Operand gradients(GetParam(), g);
      const kernels::UpdateScalars scalars = {
          kRate, kBeta1, kBeta2, kEpsilon, 1 - std::pow(kBeta1, step), 1 - std::pow(kBeta2, step),
          kScale};
      const kernels::UpdateRange range = RangeOf(kDecay, gradients, values, &first, &second);
      kernels::AdamW(Stream(), Type(), {&range, 1}, &scalars, false);
      ExpectClose(values.Values(), w, Tolerance(kFp32, kFp64), "values");
      ExpectClose(first.Values(), m, Tolerance(kFp32, kFp64), "first moment");
      ExpectClose(second.Values(), v, Tolerance(kFp32, kFp64), "second moment");
      EXPECT_EQ(gradients.Values().values, g.values) << "gradients are only read";
    }
  }
}

TEST_P(UpdateTest, AdamWWithoutAGradientOnlyDecays) {
  const kernels::UpdateScalars scalars = {0.5, 0.9, 0.95, 1e-8, 0.1, 0.05, 1};
  const Operand gradients(GetParam(), Array(1, 3)), values(GetParam(), Array(1, 3, {1, -2, 4}));
  const Operand first(GetParam(), Array(1, 3)), second(GetParam(), Array(1, 3));
  const kernels::UpdateRange range = RangeOf(0.25, gradients, values, &first, &second);
  kernels::AdamW(Stream(), Type(), {&range, 1}, &scalars, false);
  ExpectClose(values.Values(), Array(1, 3, {0.875, -1.75, 3.5}), 1e-7, "values");
}

TEST_P(UpdateTest, LionOverThreeSteps) {
  constexpr double kRate = 3e-3, kBeta1 = 0.9, kBeta2 = 0.6, kDecay = 0.1, kScale = 0.125;
  for (const std::int64_t count : kCounts) {
    Array w = Random(1, count, 1), m(1, count);
    const Operand values(GetParam(), w), first(GetParam(), m);
    for (int step = 1; step <= 3; ++step) {
      Array g = Random(1, count, static_cast<std::uint32_t>(10 + step), 8);
      if (step == 1) g(0, count / 2) = 0;  // sign(0) = 0
      for (std::int64_t i = 0; i < count; ++i) {
        const double gradient = kScale * g(0, i);
        const double ahead = kBeta1 * m(0, i) + (1 - kBeta1) * gradient;
        m(0, i) = kBeta2 * m(0, i) + (1 - kBeta2) * gradient;
        w(0, i) -= kRate * ((ahead > 0 ? 1 : ahead < 0 ? -1 : 0) + kDecay * w(0, i));
      }
      const Operand gradients(GetParam(), g);
      const kernels::UpdateScalars scalars = {2 * kRate, kBeta1, kBeta2, 0, 1, 1, kScale};
      kernels::UpdateRange range = RangeOf(kDecay, gradients, values, &first);
      range.rate = 0.5;
      kernels::Lion(Stream(), Type(), {&range, 1}, &scalars, step == 3);
      ExpectClose(values.Values(), w, Tolerance(kFp32, kFp64), "values");
      ExpectClose(first.Values(), m, Tolerance(kFp32, kFp64), "first moment");
      const Array left = step == 3 ? Array(1, count) : g;
      EXPECT_EQ(gradients.Values().values, left.values);
    }
  }
}

// The rate of a range is a factor of the step's.
TEST_P(UpdateTest, RatesOfRanges) {
  const kernels::UpdateScalars half = {1.5e-3, 0.9, 0.98, 1e-8, 0.1, 0.02, 0.37};
  kernels::UpdateScalars whole = half;
  whole.learning_rate *= 2;
  for (const auto& update : {kernels::AdamW, kernels::GradientDescent, kernels::Lion}) {
    const Array g = Random(1, 33, 1), w = Random(1, 33, 2), m = Random(1, 33, 3), v(1, 33);
    const auto values = [&](const kernels::UpdateScalars& scalars, double rate) {
      const Operand gradients(GetParam(), g), values(GetParam(), w), first(GetParam(), m),
          second(GetParam(), v);
      kernels::UpdateRange range = RangeOf(0.1, gradients, values, &first, &second);
      range.rate = rate;
      update(Stream(), Type(), {&range, 1}, &scalars, false);
      return values.Values().values;
    };
    EXPECT_EQ(values(whole, 0.5), values(half, 1));
    EXPECT_NE(values(whole, 1), values(half, 1));
  }
}

TEST_P(UpdateTest, GradientDescent) {
  for (const std::int64_t count : kCounts) {
    Array w = Random(1, count, 1);
    const Array g = Random(1, count, 2);
    const Operand values(GetParam(), w), gradients(GetParam(), g);
    kernels::UpdateScalars scalars;
    scalars.learning_rate = 0.3;
    scalars.gradient_scale = 0.5;
    const kernels::UpdateRange range = RangeOf(0.1, gradients, values);
    kernels::GradientDescent(Stream(), Type(), {&range, 1}, &scalars, false);
    for (std::int64_t i = 0; i < count; ++i) w(0, i) -= 0.3 * (0.5 * g(0, i) + 0.1 * w(0, i));
    ExpectClose(values.Values(), w, Tolerance(kFp32, kFp64), "values");
    EXPECT_EQ(gradients.Values().values, g.values);
  }
}

// values = (1 - decay) values - scale / sqrt(squares) gradients; a sum of squares of 0 divides
// nothing.
TEST_P(UpdateTest, GradientDescentScalesARangesGradients) {
  kernels::UpdateScalars scalars;
  scalars.learning_rate = 1;
  for (const double squares : {0.0, 6.25}) {
    Array w = Random(1, 33, 1);
    const Array g = Random(1, 33, 2);
    const Operand values(GetParam(), w), gradients(GetParam(), g);
    kernels::UpdateRange range = RangeOf(1.5, gradients, values);
    range.scale = -3;
    range.squares = &squares;
    kernels::GradientDescent(Stream(), Type(), {&range, 1}, &scalars, false);
    const double factor = squares == 0 ? 3 : 3 / 2.5;
    for (std::int64_t i = 0; i < 33; ++i) w(0, i) = -0.5 * w(0, i) + factor * g(0, i);
    ExpectClose(values.Values(), w, Tolerance(kFp32, kFp64), "values");
  }
}

// Ranges of their own decay in one pass, cleared or not, are what they are one by one.
TEST_P(UpdateTest, RangesAndClearing) {
  const kernels::UpdateScalars scalars = {3e-3, 0.9, 0.98, 1e-8, 0.1, 0.02, 0.37};
  for (const bool adam : {true, false}) {
    const auto update = adam ? kernels::AdamW : kernels::GradientDescent;
    std::vector<Operand> operands, want;  // gradients, values, first, second of each range
    std::vector<kernels::UpdateRange> ranges;
    for (const std::int64_t count : {5, 1, 20000, 8192, 17}) {
      for (auto* each : {&operands, &want}) {
        for (std::uint32_t i = 0; i < 4; ++i) {
          Array x = Random(1, count, 10 * i + 1);
          if (i == 3) std::for_each(x.values.begin(), x.values.end(), [](double& v) { v *= v; });
          each->emplace_back(GetParam(), x);
        }
        const Operand* o = &each->back() - 3;
        const auto range = RangeOf(count % 2 == 0 ? 0.1 : 0, o[0], o[1], o + 2, o + 3);
        if (each == &operands) {
          ranges.push_back(range);
        } else {
          update({}, Type(), {&range, 1}, &scalars, false);
        }
      }
    }
    update(Stream(), Type(), ranges, &scalars, true);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (i % 4 == 0) {
        EXPECT_EQ(operands[i].Values().values,
                  std::vector<double>(operands[i].Values().values.size()))
            << "gradients are cleared";
      } else {
        EXPECT_TRUE(operands[i].SameBits(want[i])) << "operand " << i;
      }
    }
  }
}

// The order of ranges, and of threads within them, is fixed.
TEST_P(UpdateTest, SquareSumOfRangesIsTheSumOfTheirs) {
  std::vector<Operand> operands;
  std::vector<kernels::FlatRange> ranges;
  double want = 0;
  for (const std::int64_t count : {20000, 3, 0, 8193, 1, 777}) {
    operands.emplace_back(GetParam(), Random(1, count, static_cast<std::uint32_t>(count)));
    ranges.push_back({count, operands.back().View().data});
    want += kernels::SquareSumOf({}, Type(), count, ranges.back().values);
  }
  EXPECT_EQ(kernels::SquareSum(Stream(), Type(), ranges), want);
  ExactSum exact, each;
  kernels::ExactSquareSum(Stream(), Type(), ranges, exact);
  for (const auto& range : ranges) kernels::ExactSquareSum({}, Type(), {&range, 1}, each);
  EXPECT_EQ(exact.Value(), each.Value());
}

TEST_P(UpdateTest, SquareSum) {
  for (const std::int64_t count : kCounts) {
    const Array x = Random(1, count, 1, 1e-3);
    double want = 0;
    for (const double value : x.values) want += value * value;
    const Operand values(GetParam(), x);
    const double got = kernels::SquareSumOf(Stream(), Type(), count, values.View().data);
    EXPECT_NEAR(got, want, Tolerance(1e-6, 1e-13) * want) << count;
  }
  const double nothing = kernels::SquareSumOf(Stream(), Type(), 0, nullptr);
  EXPECT_EQ(nothing, 0);
}

TEST_P(UpdateTest, SquareSumShowsValuesThatAreNotFinite) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::int64_t at : {0, 5000, 9999}) {
      Array x = Random(1, 10000, 1);
      x(0, at) = bad;
      const Operand values(GetParam(), x);
      EXPECT_FALSE(
          std::isfinite(kernels::SquareSumOf(Stream(), Type(), 10000, values.View().data)));
    }
  }
}

// Gradients far from 1, as a diverging or a converged run has them.
TEST_P(UpdateTest, SquareSumOfLargeAndSmallValues) {
  for (const double scale : {1e15, 1e-15}) {
    const Operand values(GetParam(), Array(1, 2, {3 * scale, 4 * scale}));
    const double got = kernels::SquareSumOf(Stream(), Type(), 2, values.View().data);
    EXPECT_NEAR(got / (25 * scale * scale), 1, 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, UpdateTest, testing::ValuesIn(DenseSettings()), NameOf);

TEST(UpdateThreads, SquareSumHasTheSameBitsForAnyNumberOfThreads) {
  for (const std::int64_t count : {100, 4097, 100000, 1000003}) {
    const Setting one{Dtype::kFloat32, 1, 0};
    const Operand values(one, Random(1, count, 1));
    const double want = kernels::SquareSumOf(one.Stream(), one.dtype, count, values.View().data);
    for (const int threads : {2, 3, 5}) {
      EXPECT_EQ(kernels::SquareSumOf({.threads = threads}, one.dtype, count, values.View().data),
                want)
          << count << " values, " << threads << " threads";
    }
  }
}

// Matrix products: every form, odd sizes, strides, overwriting and accumulating.

// Rounding of a sum of K products, relative to the largest result.
constexpr double kProductFp32 = 5e-7, kProductFp64 = 1e-15;

class MatrixMultiplyTest : public KernelTest {
 protected:
  void Check(std::int64_t m, std::int64_t n, std::int64_t k) const {
    const Array a = Random(m, k, 1), b = Random(k, n, 2), start = Random(m, n, 3);
    const Array product = Multiply(a, b);
    const double tolerance =
        Tolerance(kProductFp32, kProductFp64) * (2 + std::sqrt(static_cast<double>(k)));
    for (const Form form_a : {Form::kPlain, Form::kTransposed}) {
      for (const Form form_b : {Form::kPlain, Form::kTransposed}) {
        const Operand left(GetParam(), form_a == Form::kPlain ? a : Transpose(a));
        const Operand right(GetParam(), form_b == Form::kPlain ? b : Transpose(b));
        const Operand overwritten(GetParam(), Poison(m, n));
        const Operand accumulated(GetParam(), start);
        MatrixMultiply(Stream(), form_a, left.View(), form_b, right.View(), overwritten.View(),
                       false);
        MatrixMultiply(Stream(), form_a, left.View(), form_b, right.View(), accumulated.View(),
                       true);
        const std::string what = "[" + std::to_string(m) + ", " + std::to_string(k) + "] [" +
                                 std::to_string(k) + ", " + std::to_string(n) + "] forms " +
                                 std::to_string(static_cast<int>(form_a)) +
                                 std::to_string(static_cast<int>(form_b));
        ExpectClose(overwritten.Values(), product, tolerance, what);
        ExpectClose(accumulated.Values(), Add(start, product), tolerance, what + " accumulated");
      }
    }
  }
};

TEST_P(MatrixMultiplyTest, OddSizes) {
  for (const std::int64_t m : {1, 3, 17, 33, 128}) {
    for (const std::int64_t n : {1, 3, 17, 33, 128}) {
      for (const std::int64_t k : {1, 3, 17, 33, 128}) Check(m, n, k);
    }
  }
}

// A rank's slice may be empty: an empty sum is zero, and nothing else is touched.
TEST_P(MatrixMultiplyTest, NothingToMultiply) {
  for (const std::int64_t m : {0, 5}) {
    for (const std::int64_t n : {0, 7}) {
      for (const std::int64_t k : {0, 3}) {
        if (m * n * k == 0) Check(m, n, k);
      }
    }
  }
}

TEST_P(MatrixMultiplyTest, TheVocabularyOnEachSide) {
  constexpr std::int64_t kVocabulary = 33278;
  Check(5, kVocabulary, 9);
  Check(kVocabulary, 9, 5);
  Check(5, 9, kVocabulary);
}

TEST_P(MatrixMultiplyTest, RunsInsideAParallelRegion) {
  constexpr int kProducts = 6;
  const Array a = Random(17, 33, 1), b = Random(33, 29, 2), product = Multiply(a, b);
  const Operand left(GetParam(), a), right(GetParam(), b);
  std::vector<Operand> results;
  for (int i = 0; i < kProducts; ++i) results.emplace_back(GetParam(), Poison(17, 29));
#pragma omp parallel for num_threads(2)
  for (int i = 0; i < kProducts; ++i) {
    MatrixMultiply({}, Form::kPlain, left.View(), Form::kPlain, right.View(),
                   results[static_cast<std::size_t>(i)].View(), false);
  }
  for (const Operand& result : results) {
    ExpectClose(result.Values(), product, Tolerance(1e-6, 1e-14), "product");
    EXPECT_TRUE(result.SameBits(results[0]));
  }
}

TEST_P(MatrixMultiplyTest, RepeatsItsBits) {
  const Operand left(GetParam(), Random(65, 129, 1)), right(GetParam(), Random(129, 257, 2));
  const Operand first(GetParam(), Poison(65, 257)), second(GetParam(), Poison(65, 257));
  for (const Operand* result : {&first, &second}) {
    MatrixMultiply(Stream(), Form::kPlain, left.View(), Form::kPlain, right.View(), result->View(),
                   false);
  }
  EXPECT_TRUE(first.SameBits(second));
}

TEST(MatrixLibrary, HasANameAndAVersion) {
  const std::string name = kernels::MatrixLibrary();
  EXPECT_NE(name.find_first_of("0123456789"), std::string::npos) << name;
}

INSTANTIATE_TEST_SUITE_P(Kernel, MatrixMultiplyTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
