// The loss: cross entropy of whole rows and of slices, and with the head's product.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_testing.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::test {
namespace {

// Softmax and cross-entropy, from one class to a whole vocabulary.

constexpr double kCrossEntropyFp32 = 3e-6, kCrossEntropyFp64 = 1e-13;

// Smoothing and z, each alone and together.
const LossTerms kTerms[] = {0.0, 0.1, {0, 0.02}, {0.1, 0.3}};

kernels::LossTerms Of(const LossTerms& terms) { return {terms.smoothing, terms.z}; }

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
  void Check(const Array& x, const LossTerms& terms, double tolerance) const {
    const std::vector<std::int32_t> targets = Targets(x.rows, x.columns);
    const LossResult want = test::CrossEntropy(x, targets, terms);
    const Operand logits(GetParam(), x), loss_only(GetParam(), x);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> losses(targets.size(), nan), again(targets.size(), nan);
    kernels::CrossEntropy(Stream(), loss_only.View(), targets.data(), Of(terms), false,
                          again.data());
    kernels::CrossEntropy(Stream(), logits.View(), targets.data(), Of(terms), true, losses.data());
    double sum = 0;
    for (std::size_t r = 0; r < targets.size(); ++r) {
      ASSERT_EQ(losses[r], again[r]) << "with and without the gradient";
      sum += losses[r];
      const Array row(1, x.columns,
                      {x.values.begin() + static_cast<std::ptrdiff_t>(r) * x.columns,
                       x.values.begin() + static_cast<std::ptrdiff_t>(r + 1) * x.columns});
      const double one = test::CrossEntropy(row, {targets[r]}, terms).sum;
      ASSERT_NEAR(losses[r], one, tolerance * (1 + std::abs(one))) << "row " << r;
    }
    EXPECT_NEAR(sum, want.sum, tolerance * (1 + std::abs(want.sum)));
    if (x.columns == 1) {                      // one class: the gradient is zero up to rounding
      const Array gradient = logits.Values();  // but for z's
      for (std::size_t r = 0; r < targets.size(); ++r) {
        EXPECT_NEAR(gradient.values[r], want.gradient.values[r], tolerance * (1 + 9 * terms.z));
      }
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
      for (const LossTerms& terms : kTerms) {
        Check(Random(rows, vocabulary, 1, 5), terms,
              Tolerance(kCrossEntropyFp32, kCrossEntropyFp64));
      }
    }
  }
}

TEST_P(CrossEntropyTest, AWholeVocabulary) {
  for (const LossTerms& terms : kTerms) {
    Check(Random(7, 33278, 1, 8), terms, Tolerance(kCrossEntropyFp32, kCrossEntropyFp64));
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
  kernels::CrossEntropy(Stream(), logits.View(), &target, {}, true, &loss);
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
      kernels::CrossEntropy(Stream(), logits.View(), &target, {}, true, &loss);
      EXPECT_FALSE(std::isfinite(loss)) << bad << " at " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, CrossEntropyTest, testing::ValuesIn(AllSettings()), NameOf);

// Cross-entropy on slices of the vocabulary, for every cut, against the whole vocabulary.

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
                const LossTerms& terms, bool gradient, int parts) {
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
                               static_cast<std::int32_t>(slice.begin), x.columns, Of(terms),
                               gradient, statistics, parts, part, losses.data());
    PlaceSlice(logits.Values(), 0, slice.begin, result.gradient);
    result.losses.push_back(losses);
  }
  return result;
}

class CrossEntropySlicesTest : public KernelTest {
 protected:
  // Every cut of x against the reference and the kernel for a whole vocabulary.
  void Check(const Array& x, const LossTerms& terms, double tolerance) const {
    const std::vector<std::int32_t> targets = Targets(x.rows);
    const LossResult want = test::CrossEntropy(x, targets, terms);
    const Operand fused(GetParam(), x);
    std::vector<double> fused_losses(targets.size());
    kernels::CrossEntropy(Stream(), fused.View(), targets.data(), Of(terms), true,
                          fused_losses.data());
    for (int parts = 1; parts <= 8; ++parts) {
      const std::string what =
          std::to_string(x.rows) + " rows in " + std::to_string(parts) + " parts";
      const Sliced got = InSlices(GetParam(), x, targets, terms, true, parts);
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
      EXPECT_EQ(InSlices(GetParam(), x, targets, terms, false, parts).losses, got.losses)
          << what << ": with and without the gradient";
    }
  }
};

TEST_P(CrossEntropySlicesTest, EveryCut) {
  for (const std::int64_t rows : {0, 1, 7, 33}) {
    for (const LossTerms& terms : kTerms) {
      Check(Random(rows, kVocabulary, 1, 5), terms,
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

// The vocabulary's loss and gradients in blocks, for every cut into slices, threads and blocks,
// against whole logits.

constexpr double kVocabularyLossFp32 = 5e-6, kVocabularyLossFp64 = 1e-13;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct HeadProblem {
  Array x, weight, dweight;  // [rows, dim], [vocabulary, dim], what dweight is added to
  std::vector<std::int32_t> targets;
  LossTerms terms = {};
  std::vector<double> offsets = {};  // [vocabulary]; empty: none
};

// Targets all over the vocabulary, several rows with the same one; every fifth masked.
HeadProblem MakeProblem(std::int64_t rows, std::int64_t vocabulary, std::int64_t dim,
                        const LossTerms& terms, double scale = 1) {
  HeadProblem p{Random(rows, dim, 1, scale),
                Random(vocabulary, dim, 2),
                Random(vocabulary, dim, 3),
                {},
                terms};
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t target =
        r % 4 == 1 ? vocabulary / 2 : (r * 37 + vocabulary - 1) % vocabulary;
    p.targets.push_back(r % 5 == 3 ? -1 : static_cast<std::int32_t>(target));
  }
  return p;
}

struct Result {
  std::vector<double> losses;
  Array dx, dweight, statistics;
};

Result Reference(const HeadProblem& p) {
  const std::int64_t rows = p.x.rows, dim = p.x.columns, vocabulary = p.weight.rows;
  Array logits(rows, vocabulary);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      for (std::int64_t d = 0; d < dim; ++d) logits(r, v) += p.x(r, d) * p.weight(v, d);
    }
  }
  Result want{{}, Array(rows, dim), p.dweight, {}};
  for (std::int64_t r = 0; r < rows; ++r) {
    const Array row = SliceOf(logits, {r, r + 1}, {0, vocabulary});
    const LossResult loss =
        test::CrossEntropy(row, {p.targets[static_cast<std::size_t>(r)]}, p.terms);
    want.losses.push_back(loss.sum);
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      for (std::int64_t d = 0; d < dim; ++d) {
        want.dx(r, d) += loss.gradient(0, v) * p.weight(v, d);
        want.dweight(v, d) += loss.gradient(0, v) * p.x(r, d);
      }
    }
  }
  return want;
}

// One slice with its operands.
struct Slice {
  Operand weight, dx, dweight, scratch;
  kernels::VocabularyTile tile;
};

Result InSlices(const Setting& setting, const device::Stream& stream, const HeadProblem& p,
                int parts, bool gradient) {
  const std::int64_t rows = p.x.rows, dim = p.x.columns, vocabulary = p.weight.rows;
  const Operand x(setting, p.x);
  Result result{std::vector<double>(p.targets.size(), kNan), Array(rows, dim),
                Poison(vocabulary, dim), Poison(parts * rows, kernels::kSoftmaxStatistics)};
  double* statistics = result.statistics.values.data();
  std::vector<Slice> slices;
  for (int part = 0; part < parts; ++part) {
    const Part range = PartOf(vocabulary, part, parts);
    const std::int64_t scratch =
        kernels::VocabularyScratch({.threads = setting.threads}, rows, range.Size(), dim, gradient);
    slices.push_back({Operand(setting, SliceOf(p.weight, range, {0, dim})),
                      Operand(setting, Poison(rows, dim)),
                      Operand(setting, SliceOf(p.dweight, range, {0, dim})),
                      Operand(Dense(setting), Poison(1, scratch)),
                      {}});
    Slice& slice = slices.back();
    slice.tile = {x.View(),   slice.weight.View(), p.targets.data(), static_cast<int>(range.begin),
                  vocabulary, Of(p.terms),         gradient};
    if (!p.offsets.empty()) slice.tile.offsets = p.offsets.data() + range.begin;
    kernels::VocabularyStatistics(stream, slice.tile, slice.scratch.View(),
                                  statistics + part * rows * kernels::kSoftmaxStatistics);
    slice.scratch.Values();
  }
  kernels::VocabularyLosses({}, slices[0].tile, statistics, parts, result.losses.data());
  for (int part = 0; part < parts && gradient; ++part) {
    const Slice& slice = slices[static_cast<std::size_t>(part)];
    kernels::VocabularyGradient(stream, slice.tile, slice.scratch.View(), statistics, parts,
                                slice.dx.View(), slice.dweight.View());
    slice.scratch.Values();
    const Array dx = slice.dx.Values();
    for (std::size_t i = 0; i < dx.values.size(); ++i) result.dx.values[i] += dx.values[i];
    PlaceSlice(slice.dweight.Values(), PartOf(vocabulary, part, parts).begin, 0, result.dweight);
  }
  return result;
}

Result InSlices(const Setting& setting, const HeadProblem& p, int parts, bool gradient) {
  return InSlices(setting, setting.Stream(), p, parts, gradient);
}

void ExpectSame(const HeadProblem& p, const Result& got, const Result& want, double tolerance,
                const std::string& what) {
  for (std::size_t r = 0; r < p.targets.size(); ++r) {
    if (p.targets[r] < 0) {
      ASSERT_EQ(got.losses[r], 0) << what << ", masked row " << r;
      for (std::int64_t d = 0; d < p.x.columns; ++d) {
        ASSERT_EQ(got.dx(static_cast<std::int64_t>(r), d), 0) << what << ", masked row " << r;
      }
    } else {
      ASSERT_NEAR(got.losses[r], want.losses[r], tolerance * (1 + std::abs(want.losses[r])))
          << what << ", row " << r;
    }
  }
  ExpectClose(got.dx, want.dx, tolerance, what + ", dx", 1e-3);
  ExpectClose(got.dweight, want.dweight, tolerance, what + ", dweight", 1);
}

class VocabularyLossTest : public KernelTest {
 protected:
  void Check(const HeadProblem& p, const std::vector<int>& cuts, double tolerance) const {
    const Result want = Reference(p);
    for (const int parts : cuts) {
      const std::string what = std::to_string(p.x.rows) + " rows of " +
                               std::to_string(p.x.columns) + ", " + std::to_string(p.weight.rows) +
                               " tokens in " + std::to_string(parts) + " slices";
      const Result got = InSlices(GetParam(), p, parts, true);
      ExpectSame(p, got, want, tolerance, what);
      EXPECT_EQ(InSlices(GetParam(), p, parts, false).losses, got.losses)
          << what << ": with and without the gradient";
    }
  }
};

TEST_P(VocabularyLossTest, OddSizes) {
  for (const std::int64_t rows : {0, 1, 7, 37}) {
    for (const std::int64_t vocabulary : {1, 3, 33, 101, 513, 1100}) {
      for (const std::int64_t dim : {1, 5, 24}) {
        for (const LossTerms& terms : kTerms) {
          Check(MakeProblem(rows, vocabulary, dim, terms, 3), {1},
                Tolerance(kVocabularyLossFp32, kVocabularyLossFp64));
        }
      }
    }
  }
}

TEST_P(VocabularyLossTest, EveryCut) {
  for (const LossTerms& terms : kTerms) {
    Check(MakeProblem(33, 101, 8, terms, 4), {1, 2, 3, 4, 5, 6, 7, 8},
          Tolerance(kVocabularyLossFp32, kVocabularyLossFp64));
    Check(MakeProblem(9, 1500, 8, terms, 4), {1, 2, 3, 5},
          Tolerance(kVocabularyLossFp32, kVocabularyLossFp64));
  }
}

TEST_P(VocabularyLossTest, MoreThreadsThanBlocks) {
  Setting many = GetParam();
  for (const std::int64_t vocabulary : {5, 70, 600, 1100}) {
    const HeadProblem p = MakeProblem(13, vocabulary, 8, 0.1, 3);
    const Result want = Reference(p);
    for (const int threads : {3, 7}) {
      many.threads = threads;
      ExpectSame(p, InSlices(many, p, 1, true), want,
                 Tolerance(kVocabularyLossFp32, kVocabularyLossFp64),
                 std::to_string(vocabulary) + " tokens, " + std::to_string(threads) + " threads");
    }
  }
}

// Wide rows have wide blocks.
TEST_P(VocabularyLossTest, AWideModel) {
  Check(MakeProblem(6, 1900, 200, 0, 0.3), {1, 2},
        Tolerance(kVocabularyLossFp32, kVocabularyLossFp64));
}

TEST_P(VocabularyLossTest, CanonicalAndRoundedProducts) {
  const HeadProblem p = MakeProblem(37, 1100, 24, 0.1, 3);
  const Result want = Reference(p);
  device::Stream stream = Stream();
  stream.canonical = true;
  ExpectSame(p, InSlices(GetParam(), stream, p, 2, true), want,
             Tolerance(kVocabularyLossFp32, kVocabularyLossFp64), "canonical");
  if (device::Bf16Instructions().empty()) return;
  stream = Stream();
  stream.bf16 = true;
  constexpr double kBf16 = 0x1p-8;  // relative, of an operand; fp32 sums of many
  ExpectSame(p, InSlices(GetParam(), stream, p, 2, true), want,
             Tolerance(4 * kBf16, kVocabularyLossFp64), "bf16");
}

// The largest logit so far rises from block to block, for some rows, by so much that what was
// before it counts nothing; for others it falls.
TEST_P(VocabularyLossTest, BlocksOfDifferentHeight) {
  HeadProblem p = MakeProblem(9, 2100, 4, 0, 1);
  for (std::int64_t v = 0; v < p.weight.rows; ++v) {
    p.weight(v, 0) = static_cast<double>(v / 64);
  }
  for (std::int64_t r = 0; r < p.x.rows; ++r) p.x(r, 0) = static_cast<double>(r - 4) / 2;
  for (const LossTerms& terms : kTerms) {
    p.terms = terms;
    Check(p, {1, 2, 3}, Tolerance(5e-5, 1e-12));
  }
}

// Sums of logits, which cancel: their rounding follows from the magnitudes that were added, not
// from what is left. A sum of n terms is off by sqrt(n) u sum |term| (Higham and Mary 2019; n u sum
// |term| at the very worst), u the unit roundoff; two such sums are compared.
void ExpectSumsOfLogits(const Array& got, const Array& want, const Array& logits, double unit) {
  const double additions = std::sqrt(static_cast<double>(logits.columns));
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    double magnitudes = 0;
    for (std::int64_t v = 0; v < logits.columns; ++v) magnitudes += std::abs(logits(r, v));
    EXPECT_NEAR(got(r, 0), want(r, 0), 2 * additions * unit * magnitudes) << "row " << r;
  }
}

// Statistics equal those of SoftmaxStatistics, which ranks exchange: [rows, {largest logit, sum of
// exponentials, target's logit, sum of logits}] per slice.
TEST_P(VocabularyLossTest, StatisticsAreThoseOfWholeLogits) {
  constexpr std::int64_t kSumOfLogits = 3;
  const HeadProblem p = MakeProblem(33, 1300, 1, 0, 5);
  for (const int parts : {1, 2, 5}) {
    const Array got = InSlices(GetParam(), p, parts, true).statistics;
    for (int part = 0; part < parts; ++part) {
      const Part range = PartOf(p.weight.rows, part, parts);
      Array logits(p.x.rows, range.Size());
      for (std::int64_t r = 0; r < p.x.rows; ++r) {
        for (std::int64_t v = 0; v < range.Size(); ++v) {
          logits(r, v) = p.x(r, 0) * p.weight(range.begin + v, 0);
        }
      }
      const Operand whole(GetParam(), logits);
      Array want = Poison(p.x.rows, kernels::kSoftmaxStatistics);
      kernels::SoftmaxStatistics(Stream(), whole.View(), p.targets.data(),
                                 static_cast<std::int32_t>(range.begin), want.values.data());
      for (std::int64_t r = 0; r < p.x.rows; ++r) {  // masked rows have no statistics
        if (p.targets[static_cast<std::size_t>(r)] >= 0) continue;
        for (std::int64_t v = 0; v < range.Size(); ++v) logits(r, v) = 0;
      }
      const Part rows{part * p.x.rows, (part + 1) * p.x.rows};
      const auto columns = [&](const Array& all, const Part& some, std::int64_t column) {
        return SliceOf(all, some, {column, column + 1});
      };
      for (std::int64_t column = 0; column < kSumOfLogits; ++column) {
        ExpectClose(columns(got, rows, column), columns(want, {0, p.x.rows}, column),
                    Tolerance(kVocabularyLossFp32, kVocabularyLossFp64),
                    "statistic " + std::to_string(column));
      }
      ExpectSumsOfLogits(columns(got, rows, kSumOfLogits),
                         columns(want, {0, p.x.rows}, kSumOfLogits), logits,
                         Tolerance(0x1p-24, 0x1p-53));
    }
  }
}

// If the target is nearly certain, the loss and the gradient are tiny and their relative accuracy
// still counts.
TEST_P(VocabularyLossTest, ACertainPrediction) {
  HeadProblem p{Array(1, 1, {1}), Array(5, 1, {12, 0, 0, 0, 0}), Array(5, 1), {0}, 0};
  const Result got = InSlices(GetParam(), p, 1, true);
  const double relative = Tolerance(1e-5, 1e-10);
  const double other = std::exp(-12.0) / (1 + 4 * std::exp(-12.0));
  EXPECT_NEAR(got.losses[0], std::log1p(4 * std::exp(-12.0)), Tolerance(1e-6, 1e-14));
  EXPECT_NEAR(got.dweight(0, 0), -4 * other, relative * 4 * other);
  EXPECT_NEAR(got.dweight(1, 0), other, relative * other);
  EXPECT_NEAR(got.dx(0, 0), -48 * other, relative * 48 * other);
  // A term of z as small as what is left of p - 1.
  p.terms.z = 1e-6;
  const double log_sum = 12 + std::log1p(4 * std::exp(-12.0));
  const double ahead = 2 * p.terms.z * log_sum * (1 - 4 * other);
  const double pull = InSlices(GetParam(), p, 1, true).dweight(0, 0);
  EXPECT_NEAR(pull, ahead - 4 * other, relative * 4 * other);
}

// From a weight, in the losses of all rows; from a row of x, in its own loss alone.
TEST_P(VocabularyLossTest, ANumberThatIsNoneShowsInTheLoss) {
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    for (const std::int64_t at : {0, 1, 511, 512, 700, 1099}) {
      for (const int parts : {1, 2, 5}) {
        for (const bool gradient : {false, true}) {
          HeadProblem p = MakeProblem(3, 1100, 2, 0);
          p.weight(at, 0) = bad;
          const std::vector<double> losses = InSlices(GetParam(), p, parts, gradient).losses;
          for (const double loss : losses) {
            EXPECT_FALSE(std::isfinite(loss)) << bad << " at " << at << " of " << parts;
          }
        }
      }
    }
    HeadProblem p = MakeProblem(3, 1100, 2, 0.1);
    const std::vector<double> good = InSlices(GetParam(), p, 1, true).losses;
    p.x(1, 0) = bad;
    const std::vector<double> losses = InSlices(GetParam(), p, 1, true).losses;
    EXPECT_FALSE(std::isfinite(losses[1])) << bad;
    EXPECT_EQ(losses[0], good[0]);
    EXPECT_EQ(losses[2], good[2]);
  }
}

// A masked row has no part in anything, whatever stands in it.
TEST_P(VocabularyLossTest, AMaskedRowOfNoNumbers) {
  HeadProblem p = MakeProblem(5, 600, 3, 0.1);
  ASSERT_LT(p.targets[3], 0);
  const Result want = Reference(p);
  for (const double bad : {kNan, kInfinity}) {
    for (std::int64_t d = 0; d < 3; ++d) p.x(3, d) = bad;
    ExpectSame(p, InSlices(GetParam(), p, 2, true), want,
               Tolerance(kVocabularyLossFp32, kVocabularyLossFp64), "masked");
  }
}

TEST_P(VocabularyLossTest, TheSameBitsEveryTime) {
  const HeadProblem p = MakeProblem(37, 1700, 16, 0.1, 2);
  for (const int threads : {1, 2, 3}) {
    Setting setting = GetParam();
    setting.threads = threads;
    const Result once = InSlices(setting, p, 2, true), again = InSlices(setting, p, 2, true);
    EXPECT_EQ(once.losses, again.losses);
    EXPECT_EQ(once.dx.values, again.dx.values);
    EXPECT_EQ(once.dweight.values, again.dweight.values);
  }
}

// Without the gradient, the tile itself is not kept.
TEST(VocabularyScratchTest, GrowsWithTheVocabularyForTheGradientAlone) {
  const std::int64_t kept = kernels::VocabularyScratch({.threads = 2}, 512, 33278, 128, true);
  EXPECT_GE(kept, 512 * 33278);
  EXPECT_LE(kept, 512 * 33278 * 11 / 10);
  EXPECT_LE(kernels::VocabularyScratch({.threads = 2}, 512, 33278, 128, false), 2 * 512 * 1100);
}

INSTANTIATE_TEST_SUITE_P(Kernel, VocabularyLossTest, testing::ValuesIn(AllSettings()), NameOf);

// The words of a sampled softmax.

struct Words {
  std::vector<std::int32_t> tokens, targets;  // global ids; places of the targets
  std::vector<double> offsets;
};

Words Draw(const kernels::WordDraw& draw, const std::vector<std::int32_t>& targets) {
  const auto tokens = std::ssize(targets);
  const std::int64_t most = kernels::MostWords(draw, tokens);
  std::vector<std::int32_t> places(static_cast<std::size_t>(draw.slice.Size()));
  Words words{std::vector<std::int32_t>(static_cast<std::size_t>(most)),
              std::vector<std::int32_t>(targets.size()),
              std::vector<double>(static_cast<std::size_t>(most))};
  const std::int64_t count = kernels::SampleWords({}, draw, targets.data(), tokens,
                                                  {.most = most,
                                                   .places = places.data(),
                                                   .words = words.tokens.data(),
                                                   .offsets = words.offsets.data(),
                                                   .targets = words.targets.data()});
  EXPECT_LE(count, most);
  words.tokens.resize(static_cast<std::size_t>(count));
  words.offsets.resize(static_cast<std::size_t>(count));
  for (std::int32_t& token : words.tokens) token += static_cast<std::int32_t>(draw.slice.begin);
  return words;
}

constexpr double kDrawn = -100;  // words with lower offsets are there only as targets

// To the bit: gradients of 1e-41 would be subnormal, and their products slow.
TEST(SampledWordsTest, WordsThatAreOnlyTargetsCountForNoOtherRow) {
  const Words words = Draw({.count = 6, .vocabulary = 40, .slice = {20, 40}}, {31});
  ASSERT_EQ(words.tokens.front(), 20);
  ASSERT_LT(words.offsets.front(), kDrawn);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    HeadProblem p = MakeProblem(5, std::ssize(words.tokens), 3, {});
    std::ranges::fill(p.targets, words.targets.front());
    p.offsets = words.offsets;
    p.dweight = Array(p.weight.rows, 3);
    const Result got = InSlices({.dtype = dtype}, p, 1, true);
    for (std::int64_t word = 0; word < p.weight.rows; ++word) {
      const bool counts =
          words.offsets[static_cast<std::size_t>(word)] > kDrawn || word == p.targets.front();
      for (std::int64_t d = 0; d < 3; ++d) EXPECT_EQ(got.dweight(word, d) != 0, counts) << word;
    }
  }
}

TEST(SampledWordsTest, EachWordComesAsOftenAsItsWeightSays) {
  constexpr std::int64_t kTokens = 53, kAlways = 5, kSteps = 20000;
  kernels::WordDraw draw{.count = 11, .vocabulary = kTokens, .slice = {0, kTokens}, .seed = 3};
  std::vector<double> weights(kTokens);  // their mean over steps is 1 for each word
  for (draw.step = 0; draw.step < kSteps; ++draw.step) {
    const Words words = Draw(draw, {});
    for (std::size_t i = 0; i < words.tokens.size(); ++i) {
      const auto token = static_cast<std::size_t>(words.tokens[i]);
      if (words.offsets[i] < kDrawn) continue;
      if (token < kAlways) {
        EXPECT_EQ(words.offsets[i], 0);
      }
      weights[token] += std::exp(words.offsets[i]) / kSteps;
    }
  }
  // Five standard deviations of the mean of draws with probability 1/8.
  for (const double weight : weights) EXPECT_NEAR(weight, 1, 5 * std::sqrt(7.0 / kSteps));
}

TEST(SampledWordsTest, SlicesShareTheWordsOfTheWhole) {
  const std::vector<std::int32_t> targets = {100, -1, 40, 0, 7, 40, 99, 63};
  kernels::WordDraw draw{.count = 20, .vocabulary = 101, .slice = {0, 101}, .seed = 3, .step = 9};
  const Words whole = Draw(draw, targets);
  for (int parts = 1; parts <= 8; ++parts) {
    std::vector<std::pair<std::int32_t, double>> drawn, wanted;
    std::vector<int> owners(targets.size());
    for (int part = 0; part < parts; ++part) {
      draw.slice = PartOf(101, part, parts);
      const Words words = Draw(draw, targets);
      EXPECT_TRUE(std::ranges::is_sorted(words.tokens));
      for (std::size_t i = 0; i < words.tokens.size(); ++i) {
        if (words.offsets[i] > kDrawn) drawn.emplace_back(words.tokens[i], words.offsets[i]);
      }
      for (std::size_t t = 0; t < targets.size(); ++t) {
        const bool mine = targets[t] >= draw.slice.begin && targets[t] < draw.slice.end;
        owners[t] += mine ? 1 : 0;
        if (mine) {
          EXPECT_EQ(words.tokens[static_cast<std::size_t>(words.targets[t])], targets[t]);
        } else if (targets[t] < 0) {
          EXPECT_LT(words.targets[t], 0);
        } else {
          EXPECT_GE(words.targets[t], std::ssize(words.tokens)) << "a token of another slice";
        }
      }
    }
    for (std::size_t i = 0; i < whole.tokens.size(); ++i) {
      if (whole.offsets[i] > kDrawn) wanted.emplace_back(whole.tokens[i], whole.offsets[i]);
    }
    EXPECT_EQ(drawn, wanted) << parts << " parts";
    EXPECT_EQ(owners, (std::vector<int>{1, 0, 1, 1, 1, 1, 1, 1}));
  }
}

}  // namespace
}  // namespace trireme::test
