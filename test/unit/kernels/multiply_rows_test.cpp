// Products that hand on rows as they are complete: each row exactly once and complete, with the
// same bits as without if that is promised.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "held_matrix.hpp"
#include "kernels/cpu/product/multiply.hpp"

namespace trireme::test {
namespace {

using kernels::Form;

struct Size {
  std::int64_t m, n, k;
};
// One panel and less, many blocks, several superblocks of columns and of the inner dimension, a
// right operand that is too large to be packed at once, slices of a large product.
constexpr Size kSizes[] = {{1, 1, 1},       {13, 40, 30},    {333, 70, 129},  {1000, 33, 20},
                           {130, 1400, 90}, {100, 40, 3000}, {60, 1100, 700}, {2100, 2500, 300}};

template <typename T>
class MultiplyRowsTest : public testing::Test {
 protected:
  // The product, then twice each element; against the plain product's bits or values.
  static void Check(const device::Stream& stream, const Size& size, Form form_a, Form form_b,
                    bool accumulate, double tolerance) {
    const auto [m, n, k] = size;
    const Held<T> a(form_a == Form::kPlain ? m : k, form_a == Form::kPlain ? k : m, 3, 1, 1);
    const Held<T> b(form_b == Form::kPlain ? k : n, form_b == Form::kPlain ? n : k, 3, 1, 2);
    const Held<T> start(m, n, 3, 1, 3);
    Held<T> want = start, got = start;
    kernels::MatrixMultiply(stream, form_a, a.View(), form_b, b.View(), want.View(), accumulate);
    std::vector<std::atomic<int>> times(static_cast<std::size_t>(m));
    kernels::MatrixMultiplyThen(stream, form_a, a.View(), form_b, b.View(), got.View(), accumulate,
                                [&](const Part& rows) {
                                  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
                                    ++times[static_cast<std::size_t>(i)];
                                    for (std::int64_t j = 0; j < n; ++j) got(i, j) *= 2;
                                  }
                                });
    for (std::int64_t i = 0; i < m; ++i) {
      ASSERT_EQ(times[static_cast<std::size_t>(i)], 1) << "row " << i << " of " << m << " x " << n;
      for (std::int64_t j = 0; j < n; ++j) want(i, j) *= 2;
    }
    if (tolerance == 0) {
      EXPECT_TRUE(got.SameBits(want)) << m << " x " << n << " x " << k;
      return;
    }
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        ASSERT_NEAR(got(i, j), want(i, j), tolerance) << i << " " << j << " of " << m << " x " << n;
      }
    }
  }
  static void CheckAll(device::Stream stream, double tolerance) {
    for (const Size& size : kSizes) {
      for (int variant = 0; variant < 4; ++variant) {
        stream.threads = 1 + variant;
        Check(stream, size, variant & 1 ? Form::kTransposed : Form::kPlain,
              variant & 2 ? Form::kTransposed : Form::kPlain, variant % 3 != 0, tolerance);
      }
    }
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(MultiplyRowsTest, Types);

TYPED_TEST(MultiplyRowsTest, Library) {
  TestFixture::CheckAll({}, std::is_same_v<TypeParam, float> ? 2e-4 : 1e-12);
}
TYPED_TEST(MultiplyRowsTest, CanonicalKeepsItsBits) {
  TestFixture::CheckAll({.threads = 1, .canonical = true}, 0);
}
TYPED_TEST(MultiplyRowsTest, Bf16) {
  if (kernels::UsableBf16Kernels() == nullptr) GTEST_SKIP() << "this CPU multiplies no bf16";
  TestFixture::CheckAll({.bf16 = true}, std::is_same_v<TypeParam, float> ? 2e-4 : 1e-12);
}

TYPED_TEST(MultiplyRowsTest, InsideAParallelRegion) {
#pragma omp parallel for num_threads(3)
  for (int i = 0; i < 6; ++i) {
    TestFixture::Check({.threads = 3, .canonical = true}, {333, 70, 129}, Form::kPlain,
                       Form::kTransposed, true, 0);
  }
}

// An empty sum is followed too; no rows are followed by nothing.
TYPED_TEST(MultiplyRowsTest, NothingToMultiply) {
  const Held<TypeParam> a(4, 0, 0, 0), b(0, 6, 0, 0), c(4, 6, 0, 0, 1);
  std::int64_t rows = 0;
  const auto then = [&](const Part& part) { rows += part.Size(); };
  for (const bool canonical : {false, true}) {
    const device::Stream stream{.threads = 1, .canonical = canonical};
    rows = 0;
    kernels::MatrixMultiplyThen(stream, Form::kPlain, a.View(), Form::kPlain, b.View(), c.View(),
                                false, then);
    EXPECT_EQ(rows, 4);
    EXPECT_EQ(c.At(3, 5), 0);
    kernels::MatrixMultiplyThen(stream, Form::kPlain, a.View().Rows(0, 0), Form::kPlain, b.View(),
                                c.View().Rows(0, 0), false, then);
    EXPECT_EQ(rows, 4);
  }
}

}  // namespace
}  // namespace trireme::test
