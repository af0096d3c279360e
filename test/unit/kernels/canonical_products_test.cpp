// Products that have the same bits whatever the layout.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "held_matrix.hpp"
#include "kernels/backends.hpp"
#include "kernels/cpu/matrix_library.hpp"
#include "kernels/cpu/product/multiply.hpp"
#include "kernels/cpu/thin_product.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::test {
namespace {

using kernels::Form;

// The canonical form of our own product against its definition, bit for bit: every form, odd sizes,
// strides, misaligned operands, threads, pieces of a larger product, and every instruction set of
// this CPU.

// The definition, literally.
template <typename T>
void Reference(Form form_a, const Held<T>& a, Form form_b, const Held<T>& b, Held<T>& c,
               bool accumulate) {
  const std::int64_t inner = form_a == Form::kPlain ? a.View().columns : a.View().rows;
  for (std::int64_t i = 0; i < c.View().rows; ++i) {
    for (std::int64_t j = 0; j < c.View().columns; ++j) {
      T sum = accumulate ? c(i, j) : T(0);
      for (std::int64_t begin = 0; begin < inner; begin += kernels::kInnerBlock) {
        T block = 0;
        for (std::int64_t k = begin; k < std::min(inner, begin + kernels::kInnerBlock); ++k) {
          block = std::fma(form_a == Form::kPlain ? a.At(i, k) : a.At(k, i),
                           form_b == Form::kPlain ? b.At(k, j) : b.At(j, k), block);
        }
        sum = sum + block;
      }
      c(i, j) = sum;
    }
  }
}

struct Case {
  Form form_a, form_b;
  bool accumulate;
  std::int64_t padding, offset;
  int threads;
};
std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const Form form_a : {Form::kPlain, Form::kTransposed}) {
    for (const Form form_b : {Form::kPlain, Form::kTransposed}) {
      for (const bool accumulate : {false, true}) {
        for (const int threads : {1, 2, 3}) {
          cases.push_back({form_a, form_b, accumulate, threads % 2 == 0 ? 0 : 5, threads, threads});
        }
      }
    }
  }
  return cases;
}

template <typename T>
void Check(std::int64_t m, std::int64_t n, std::int64_t k) {
  for (const Case& x : AllCases()) {
    const bool plain_a = x.form_a == Form::kPlain, plain_b = x.form_b == Form::kPlain;
    const Held<T> a(plain_a ? m : k, plain_a ? k : m, x.padding, x.offset, 1);
    const Held<T> b(plain_b ? k : n, plain_b ? n : k, x.padding, x.offset, 2);
    const Held<T> start(m, n, x.padding, x.offset, 3);
    Held<T> want = start;
    Reference(x.form_a, a, x.form_b, b, want, x.accumulate);
    for (const kernels::ProductSet& set : kernels::UsableProductSets()) {
      const Held<T> got = start;
      kernels::ProductMultiply(set, {.threads = x.threads, .canonical = true},
                               {x.form_a, a.View(), x.form_b, b.View(), got.View(), x.accumulate});
      EXPECT_TRUE(got.SameBits(want))
          << set.name << " " << m << " x " << n << " x " << k << " forms " << !plain_a << !plain_b
          << (x.accumulate ? " accumulated, " : ", ") << x.threads << " threads";
    }
  }
}

template <typename T>
class ProductCanonicalTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ProductCanonicalTest, Types);

TYPED_TEST(ProductCanonicalTest, OddSizes) {
  for (const std::int64_t m : {1, 6, 14, 15, 47}) {
    for (const std::int64_t n : {1, 8, 16, 17, 33, 70}) {
      for (const std::int64_t k : {1, 2, 16, 37}) Check<TypeParam>(m, n, k);
    }
  }
}

TYPED_TEST(ProductCanonicalTest, SeveralInnerBlocks) {
  for (const std::int64_t k : {255, 256, 257, 700}) Check<TypeParam>(29, 45, k);
}

// More than one superblock of columns, of the inner dimension, and more than one chunk of rows.
TYPED_TEST(ProductCanonicalTest, SeveralSuperblocks) {
  Check<TypeParam>(5, 2100, 300);
  Check<TypeParam>(3, 40, 9000);
  Check<TypeParam>(700, 33, 65);
}

// Rows so few per thread that the team packs together, more threads than cores.
TYPED_TEST(ProductCanonicalTest, ManyThreads) {
  using T = TypeParam;
  const Held<T> a(45, 9000, 1, 1, 1), b(9000, 37, 1, 1, 2), start(45, 37, 1, 1, 3);
  Held<T> want = start;
  Reference(Form::kPlain, a, Form::kPlain, b, want, true);
  for (const int threads : {5, 8, 12}) {
    const Held<T> got = start;
    kernels::MatrixMultiply({.threads = threads, .canonical = true}, Form::kPlain, a.View(),
                            Form::kPlain, b.View(), got.View(), true);
    EXPECT_TRUE(got.SameBits(want)) << threads;
  }
}

// Any piece of the rows and columns is what the whole product has there.
TYPED_TEST(ProductCanonicalTest, PiecesOfALargerProduct) {
  using T = TypeParam;
  constexpr std::int64_t kRows = 129, kColumns = 203, kInner = 531;
  const Held<T> a(kRows, kInner, 0, 0, 1), b(kInner, kColumns, 0, 0, 2);
  const Held<T> whole(kRows, kColumns, 0, 0);
  device::Stream stream{.threads = 2, .canonical = true};
  kernels::MatrixMultiply(stream, Form::kPlain, a.View(), Form::kPlain, b.View(), whole.View(),
                          false);
  for (const std::int64_t row : {0, 1, 13, 100}) {
    for (const std::int64_t column : {0, 3, 31, 150}) {
      for (const std::int64_t size : {1, 17, 29}) {
        const Held<T> piece(size, size, 3, 1);
        stream.threads = static_cast<int>(1 + size % 3);
        kernels::MatrixMultiply(stream, Form::kPlain, a.View().Rows(row, size), Form::kPlain,
                                b.View().Columns(column, size), piece.View(), false);
        for (std::int64_t i = 0; i < size; ++i) {
          for (std::int64_t j = 0; j < size; ++j) {
            const T got = piece.At(i, j), want = whole.At(row + i, column + j);
            ASSERT_EQ(std::memcmp(&got, &want, sizeof(T)), 0)
                << row << " " << column << " " << size;
          }
        }
      }
    }
  }
}

TYPED_TEST(ProductCanonicalTest, NeverMinusZero) {
  using T = TypeParam;
  Held<T> a(3, 5, 0, 0), b(5, 40, 0, 0);
  const Held<T> c(3, 40, 0, 0);
  std::fill_n(a.View().template As<T>(), 15, T(-1));
  std::fill_n(b.View().template As<T>(), 200, T(0));
  kernels::MatrixMultiply({.threads = 1, .canonical = true}, Form::kPlain, a.View(), Form::kPlain,
                          b.View(), c.View(), false);
  for (std::int64_t j = 0; j < 40; ++j) EXPECT_FALSE(std::signbit(c.At(1, j)));
}

TYPED_TEST(ProductCanonicalTest, RunsInsideAParallelRegion) {
  using T = TypeParam;
  const Held<T> a(70, 300, 1, 1, 1), b(300, 90, 1, 1, 2), start(70, 90, 0, 0, 3);
  Held<T> want = start;
  Reference(Form::kPlain, a, Form::kPlain, b, want, true);
  const std::vector<Held<T>> results(6, start);
#pragma omp parallel for num_threads(3)
  for (std::size_t i = 0; i < 6; ++i) {
    kernels::MatrixMultiply({.threads = 3, .canonical = true}, Form::kPlain, a.View(), Form::kPlain,
                            b.View(), results[i].View(), true);
  }
  for (const Held<T>& result : results) EXPECT_TRUE(result.SameBits(want));
}

TYPED_TEST(ProductCanonicalTest, NothingToMultiply) {
  using T = TypeParam;
  const device::Stream stream{.threads = 2, .canonical = true};
  const Held<T> a(4, 0, 0, 0), b(0, 6, 0, 0), start(4, 6, 1, 1, 3), added = start;
  Held<T> overwritten = start, zero = start;
  kernels::MatrixMultiply(stream, Form::kPlain, a.View(), Form::kPlain, b.View(), added.View(),
                          true);
  EXPECT_TRUE(added.SameBits(start));
  kernels::MatrixMultiply(stream, Form::kPlain, a.View(), Form::kPlain, b.View(),
                          overwritten.View(), false);
  Reference(Form::kPlain, a, Form::kPlain, b, zero, false);
  EXPECT_TRUE(overwritten.SameBits(zero));
}

// Products that hand on rows as they are complete: each row exactly once and complete, with the
// same bits as without if that is promised.

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
    kernels::cpu::MatrixMultiplyThen(stream, form_a, a.View(), form_b, b.View(), got.View(),
                                     accumulate, [&](const Part& rows) {
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
    kernels::cpu::MatrixMultiplyThen(stream, Form::kPlain, a.View(), Form::kPlain, b.View(),
                                     c.View(), false, then);
    EXPECT_EQ(rows, 4);
    EXPECT_EQ(c.At(3, 5), 0);
    kernels::cpu::MatrixMultiplyThen(stream, Form::kPlain, a.View().Rows(0, 0), Form::kPlain,
                                     b.View(), c.View().Rows(0, 0), false, then);
    EXPECT_EQ(rows, 4);
  }
}

// Products with few rows, by every set of kernels that this CPU can run, against a plain loop.

// Of a sum's terms in absolute value.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 3e-6 : 1e-14;

template <typename T>
void ExpectProduct(const kernels::ThinKernels& kernels, Form form, std::int64_t rows,
                   std::int64_t inner, std::int64_t columns) {
  const bool transposed = form == Form::kTransposed;
  const Held<T> x(rows, inner, 3, 1, 1);
  const Held<T> w =
      transposed ? Held<T>(columns, inner, 5, 2, 2) : Held<T>(inner, columns, 5, 2, 2);
  const auto multiply = [&](int threads) {
    Held<T> y(rows, columns, 7, 3);
    kernels::ThinMultiply(kernels, {.threads = threads}, x.View(), form, w.View(), y.View());
    return y;
  };
  const Held<T> y = multiply(1);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0, scale = 0;
      for (std::int64_t k = 0; k < inner; ++k) {
        const double term = static_cast<double>(x.At(i, k)) *
                            static_cast<double>(transposed ? w.At(j, k) : w.At(k, j));
        sum += term;
        scale += std::abs(term);
      }
      ASSERT_NEAR(y.At(i, j), sum, kTolerance<T> * scale)
          << kernels.name << ", " << rows << " x " << inner << " x " << columns << ", element " << i
          << ", " << j;
    }
  }
  EXPECT_TRUE(y.SameBits(multiply(3))) << "the number of threads changes bits";
}

// The weight's second copy, whose contents alone are read: the weight itself becomes other numbers.
template <typename T>
void ExpectSameFromPanels(const kernels::ThinKernels& kernels, Form form, std::int64_t rows,
                          std::int64_t inner, std::int64_t columns) {
  const bool transposed = form == Form::kTransposed;
  const Held<T> x(rows, inner, 3, 1, 1);
  Held<T> w = transposed ? Held<T>(columns, inner, 5, 2, 2) : Held<T>(inner, columns, 5, 2, 2);
  Held<T> y(rows, columns, 7, 3), again(rows, columns, 7, 3);
  kernels::ThinMultiply(kernels, {.threads = 1}, x.View(), form, w.View(), y.View());
  kernels::PackedWeights packed({.threads = 3}, {{.form = form, .weight = w.View()}});
  EXPECT_EQ(packed.Of(w.View().data), nullptr);
  packed.Pack();
  for (std::int64_t i = 0; i < w.View().rows; ++i) {
    for (std::int64_t j = 0; j < w.View().columns; ++j)
      w(i, j) = std::numeric_limits<T>::quiet_NaN();
  }
  for (const int threads : {1, 3}) {
    kernels::ThinMultiply(kernels, {.threads = threads}, x.View(), form, w.View(), again.View(),
                          packed.Of(w.View().data));
    ASSERT_TRUE(y.SameBits(again)) << kernels.name << ", " << rows << " x " << inner << " x "
                                   << columns << ", " << threads << " threads";
  }
}

// Guards around y would show a write beside it: SameBits compares them with an untouched one's.
template <typename T>
void ExpectNothingBeside(const kernels::ThinKernels& kernels, Form form) {
  const Held<T> x(5, 19, 0, 0, 1),
      w(form == Form::kTransposed ? 21 : 19, form == Form::kTransposed ? 19 : 21, 0, 0, 2);
  Held<T> y(5, 21, 4, 1);
  const Held<T> before = y;
  kernels::ThinMultiply(kernels, {.threads = 1}, x.View(), form, w.View(), y.View());
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 21; ++j) y(i, j) = before.At(i, j);
  }
  EXPECT_TRUE(y.SameBits(before)) << kernels.name;
}

constexpr std::int64_t kThinProductRows[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32};

TEST(ThinProduct, IsThatOfAPlainLoop) {
  for (const kernels::ThinKernels& kernels : kernels::UsableThinKernels()) {
    for (const Form form : {Form::kTransposed, Form::kPlain}) {
      for (const std::int64_t rows : kThinProductRows) {
        for (const std::int64_t inner : {1, 16, 33, 128, 300}) {
          for (const std::int64_t columns : {1, 15, 32, 65, 200}) {
            ExpectProduct<float>(kernels, form, rows, inner, columns);
            ExpectProduct<double>(kernels, form, rows, inner, columns);
          }
        }
      }
    }
  }
}

TEST(ThinProduct, FromPanelsHasTheSameBits) {
  for (const kernels::ThinKernels& kernels : kernels::UsableThinKernels()) {
    for (const Form form : {Form::kTransposed, Form::kPlain}) {
      for (const std::int64_t rows : {2, 3, 7, 8, 13, 16, 24, 32}) {
        for (const std::int64_t inner : {1, 33, 256, 700}) {
          for (const std::int64_t columns : {1, 15, 32, 65, 200}) {
            ExpectSameFromPanels<float>(kernels, form, rows, inner, columns);
            ExpectSameFromPanels<double>(kernels, form, rows, inner, columns);
          }
        }
      }
    }
  }
}

TEST(ThinProduct, WritesNothingBesideItsResult) {
  for (const kernels::ThinKernels& kernels : kernels::UsableThinKernels()) {
    for (const Form form : {Form::kTransposed, Form::kPlain}) {
      ExpectNothingBeside<float>(kernels, form);
      ExpectNothingBeside<double>(kernels, form);
    }
  }
}

}  // namespace
}  // namespace trireme::test
