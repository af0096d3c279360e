// The canonical form of our own product against its definition, bit for bit: every form, odd sizes,
// strides, misaligned operands, threads, pieces of a larger product, and every instruction set of
// this CPU.
#include "kernels/cpu/product/multiply.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "held_matrix.hpp"

namespace trireme::test {
namespace {

using kernels::Form;

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
      kernels::ProductMultiply(set, {.threads = x.threads, .canonical = true}, x.form_a, a.View(),
                               x.form_b, b.View(), got.View(), x.accumulate);
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

}  // namespace
}  // namespace trireme::test
