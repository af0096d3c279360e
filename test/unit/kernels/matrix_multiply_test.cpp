// Matrix products: every form, odd sizes, strides, overwriting and accumulating.
#include "trireme/kernels/linear.hpp"

#include <cmath>

#include "kernel_testing.hpp"

namespace trireme::test {
namespace {

using kernels::Form;
using kernels::MatrixMultiply;

// Rounding of a sum of K products, relative to the largest result.
constexpr double kFp32 = 5e-7, kFp64 = 1e-15;

class MatrixMultiplyTest : public KernelTest {
 protected:
  void Check(std::int64_t m, std::int64_t n, std::int64_t k) const {
    const Array a = Random(m, k, 1), b = Random(k, n, 2), start = Random(m, n, 3);
    const Array product = Multiply(a, b);
    const double tolerance = Tolerance(kFp32, kFp64) * (2 + std::sqrt(static_cast<double>(k)));
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
