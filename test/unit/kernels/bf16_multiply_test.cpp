// Products on a bf16 stream, our own and the library's, by bf16 instructions and by fp32 products:
// every element against operands rounded to bf16 and multiplied in fp64; rounding of operands; NaN
// and infinity; CPUs without bf16.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "held_matrix.hpp"
#include "kernels/cpu/matrix_library.hpp"
#include "kernels/cpu/product/multiply.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

using kernels::Form;

constexpr double kEpsilon = 0x1p-24;  // half a unit in the last place of fp32
const device::Stream kStream{.bf16 = true};

// Rounding to nearest, ties to even, on the bits; not for NaN.
float Rounded(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

class Bf16MultiplyTest : public testing::Test {};

using Multiply = void (*)(const device::Stream&, Form, const kernels::Matrix&, Form,
                          const kernels::Matrix&, const kernels::Matrix&, bool);
void Own(const device::Stream& stream, Form form_a, const kernels::Matrix& a, Form form_b,
         const kernels::Matrix& b, const kernels::Matrix& c, bool accumulate) {
  kernels::Bf16Multiply(*kernels::UsableBf16Kernels(), stream,
                        {form_a, a, form_b, b, c, accumulate});
}
void Library(const device::Stream& stream, Form form_a, const kernels::Matrix& a, Form form_b,
             const kernels::Matrix& b, const kernels::Matrix& c, bool accumulate) {
  kernels::LibraryBf16Multiply(stream, {form_a, a, form_b, b, c, accumulate});
}
void Seam(const device::Stream& stream, Form form_a, const kernels::Matrix& a, Form form_b,
          const kernels::Matrix& b, const kernels::Matrix& c, bool accumulate) {
  kernels::MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate);
}
struct Named {
  const char* name;
  Multiply multiply;
};
void OwnByFp32(const device::Stream& stream, Form form_a, const kernels::Matrix& a, Form form_b,
               const kernels::Matrix& b, const kernels::Matrix& c, bool accumulate) {
  kernels::RoundedMultiply(kernels::UsableProductSets()[0], stream,
                           {form_a, a, form_b, b, c, accumulate});
}
void Copies(const device::Stream& stream, Form form_a, const kernels::Matrix& a, Form form_b,
            const kernels::Matrix& b, const kernels::Matrix& c, bool accumulate) {
  kernels::MultiplyRoundedCopies(stream, {form_a, a, form_b, b, c, accumulate});
}
void SeamByFp32(const device::Stream& stream, Form form_a, const kernels::Matrix& a, Form form_b,
                const kernels::Matrix& b, const kernels::Matrix& c, bool accumulate) {
  device::Stream by_fp32 = stream;
  by_fp32.bf16_by_fp32 = true;
  kernels::MatrixMultiply(by_fp32, form_a, a, form_b, b, c, accumulate);
}
// Those that this CPU has.
std::vector<Named> Products() {
  std::vector<Named> products = {
      {"by fp32", &OwnByFp32}, {"copies", &Copies}, {"seam by fp32", &SeamByFp32}};
  if (kernels::UsableBf16Kernels() == nullptr) return products;
  products.insert(products.end(), {{"own", &Own}, {"library", &Library}, {"seam", &Seam}});
  return products;
}

// Value that an element must have, and by how much it may differ.
struct Want {
  double value, bound;
};
std::vector<Want> Reference(Form form_a, const Held<float>& a, Form form_b, const Held<float>& b,
                            const Held<float>& start, bool accumulate) {
  const std::int64_t inner = form_a == Form::kPlain ? a.View().columns : a.View().rows;
  std::vector<Want> want;
  for (std::int64_t i = 0; i < start.View().rows; ++i) {
    for (std::int64_t j = 0; j < start.View().columns; ++j) {
      double sum = accumulate ? start.At(i, j) : 0, size = std::abs(sum);
      for (std::int64_t k = 0; k < inner; ++k) {
        const double x = Rounded(form_a == Form::kPlain ? a.At(i, k) : a.At(k, i));
        const double y = Rounded(form_b == Form::kPlain ? b.At(k, j) : b.At(j, k));
        sum += x * y;
        size += std::abs(x * y);
      }
      want.push_back({sum, static_cast<double>(inner + 2) * kEpsilon * size});
    }
  }
  return want;
}

// Every form, overwriting and adding, dense and strided, with every product.
void Check(std::int64_t m, std::int64_t n, std::int64_t k, int threads) {
  device::Stream stream = kStream;
  stream.threads = threads;
  for (int variant = 0; variant < 16; ++variant) {
    const Form form_a = variant & 1 ? Form::kTransposed : Form::kPlain;
    const Form form_b = variant & 2 ? Form::kTransposed : Form::kPlain;
    const bool accumulate = (variant & 4) != 0, plain_a = form_a == Form::kPlain;
    const std::int64_t padding = variant & 8 ? 5 : 0, offset = variant & 8 ? 3 : 0;
    const Held<float> a(plain_a ? m : k, plain_a ? k : m, padding, offset, 1);
    const Held<float> b(form_b == Form::kPlain ? k : n, form_b == Form::kPlain ? n : k, padding,
                        offset, 2);
    const Held<float> start(m, n, padding, offset, 3);
    const std::vector<Want> want = Reference(form_a, a, form_b, b, start, accumulate);
    for (const Named& product : Products()) {
      Held<float> got = start;
      product.multiply(stream, form_a, a.View(), form_b, b.View(), got.View(), accumulate);
      for (std::int64_t i = 0; i < m * n; ++i) {
        const Want& expected = want[static_cast<std::size_t>(i)];
        ASSERT_NEAR(got.At(i / n, i % n), expected.value, expected.bound)
            << product.name << ", " << m << " x " << n << " x " << k << ", variant " << variant
            << ", element " << i / n << " " << i % n;
        got(i / n, i % n) = start.At(i / n, i % n);
      }
      EXPECT_TRUE(got.SameBits(start)) << product.name << " wrote around its result";
    }
  }
}

TEST_F(Bf16MultiplyTest, OddSizes) {
  for (const std::int64_t m : {1, 14, 47}) {
    for (const std::int64_t n : {1, 33, 70}) {
      for (const std::int64_t k : {1, 2, 32, 37}) Check(m, n, k, 1);
    }
  }
}

TEST_F(Bf16MultiplyTest, SeveralBlocksChunksAndThreads) {
  for (const std::int64_t k : {511, 512, 513, 1301}) Check(29, 45, k, 2);
  Check(5, 2100, 601, 2);
  Check(3, 40, 9001, 3);
  Check(700, 33, 65, 2);
  Check(45, 37, 9000, 5);
}

// Ties go to even, all else to the nearest: found in the product with 1, in whatever place of a
// panel and word an element lies.
TEST_F(Bf16MultiplyTest, RoundsToNearestEven) {
  constexpr std::int64_t kSize = 37;
  Held<float> values(kSize, kSize, 0, 0), one(kSize, kSize, 0, 0);
  const Held<float> left(kSize, kSize, 0, 0), right(kSize, kSize, 0, 0);
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t j = 0; j < kSize; ++j) {
      const std::int64_t at =
          i * kSize + j;  // around every 1 + n / 256, which is half way if n is odd
      values(i, j) = std::ldexp(
          1.0f + static_cast<float>(at / 3) / 256 + static_cast<float>(at % 3 - 1) * 0x1p-23f,
          static_cast<int>(at % 40) - 20);
      one(i, j) = i == j ? 1.0f : 0.0f;
    }
  }
  for (const Named& product : Products()) {
    for (const Form form : {Form::kPlain, Form::kTransposed}) {
      product.multiply(kStream, form, values.View(), form, one.View(), left.View(), false);
      product.multiply(kStream, form, one.View(), form, values.View(), right.View(), false);
      for (std::int64_t i = 0; i < kSize; ++i) {
        for (std::int64_t j = 0; j < kSize; ++j) {
          const float want = Rounded(form == Form::kPlain ? values(i, j) : values(j, i));
          ASSERT_EQ(left.At(i, j), want) << product.name << " " << i << " " << j;
          ASSERT_EQ(right.At(i, j), want) << product.name << " " << i << " " << j;
        }
      }
    }
  }
}

TEST_F(Bf16MultiplyTest, NanAndInfinityPropagate) {
  const float infinity = std::numeric_limits<float>::infinity();
  Held<float> a(20, 41, 0, 0, 1), b(41, 50, 0, 0, 2);
  for (std::int64_t k = 0; k < 41; ++k) b(k, 7) = 1;
  a(3, 40) = std::numeric_limits<float>::quiet_NaN();
  a(5, 6) = infinity;
  a(6, 0) = -infinity;
  a(8, 1) = std::numeric_limits<float>::max();  // rounds up, to infinity
  a(9, 1) = infinity;
  a(9, 2) = -infinity;
  const Held<float> c(20, 50, 0, 0);
  for (const Named& product : Products()) {
    product.multiply(kStream, Form::kPlain, a.View(), Form::kPlain, b.View(), c.View(), false);
    for (std::int64_t j = 0; j < 50; ++j) EXPECT_TRUE(std::isnan(c.At(3, j))) << product.name;
    EXPECT_EQ(c.At(5, 7), infinity) << product.name;
    EXPECT_EQ(c.At(6, 7), -infinity) << product.name;
    EXPECT_EQ(c.At(8, 7), infinity) << product.name;
    EXPECT_TRUE(std::isnan(c.At(9, 7))) << product.name;
    EXPECT_TRUE(std::isfinite(c.At(2, 7)) && std::isfinite(c.At(4, 7))) << product.name;
  }
}

// Bits do not depend on the number of threads, and a region's threads multiply alone.
TEST_F(Bf16MultiplyTest, ThreadsAndRegions) {
  const Held<float> a(130, 700, 1, 1, 1), b(700, 90, 1, 1, 2), start(130, 90, 0, 0, 3);
  for (const Named& product : Products()) {
    const Held<float> one = start;
    product.multiply(kStream, Form::kPlain, a.View(), Form::kPlain, b.View(), one.View(), true);
    if (product.multiply == &Own || product.multiply == &OwnByFp32) {
      for (const int threads : {2, 3, 5}) {
        const Held<float> several = start;
        device::Stream stream = kStream;
        stream.threads = threads;
        product.multiply(stream, Form::kPlain, a.View(), Form::kPlain, b.View(), several.View(),
                         true);
        EXPECT_TRUE(several.SameBits(one)) << threads;
      }
    }
    const std::vector<Held<float>> results(6, start);
#pragma omp parallel for num_threads(3)
    for (std::size_t i = 0; i < 6; ++i) {
      product.multiply(kStream, Form::kPlain, a.View(), Form::kPlain, b.View(), results[i].View(),
                       true);
    }
    for (const Held<float>& result : results) {
      for (std::int64_t i = 0; i < 130 * 90; ++i) {
        ASSERT_NEAR(result.At(i / 90, i % 90), one.At(i / 90, i % 90), 1e-4) << product.name;
      }
    }
  }
}

// Every instruction set gives the bits of the canonical product of rounded copies: for the seam,
// too, with and without work on complete rows.
TEST_F(Bf16MultiplyTest, ByFp32IsTheCanonicalProductOfRoundedOperands) {
  constexpr std::int64_t kShapes[][3] = {{130, 90, 700}, {1, 33, 257}, {29, 5, 3}, {64, 2100, 40}};
  for (const auto& [m, n, k] : kShapes) {
    for (int variant = 0; variant < 8; ++variant) {
      const Form form_a = variant & 1 ? Form::kTransposed : Form::kPlain;
      const Form form_b = variant & 2 ? Form::kTransposed : Form::kPlain;
      const bool accumulate = (variant & 4) != 0;
      Held<float> a(form_a == Form::kPlain ? m : k, form_a == Form::kPlain ? k : m, 1, 1, 1);
      Held<float> b(form_b == Form::kPlain ? k : n, form_b == Form::kPlain ? n : k, 1, 1, 2);
      const Held<float> start(m, n, 1, 1, 3), want = start;
      const Held<float> plain_a = a, plain_b = b;
      for (Held<float>* operand : {&a, &b}) {
        const kernels::Matrix all = operand->View();
        for (std::int64_t i = 0; i < all.rows; ++i) {
          for (std::int64_t j = 0; j < all.columns; ++j)
            (*operand)(i, j) = Rounded((*operand)(i, j));
        }
      }
      kernels::MatrixMultiply({.canonical = true}, form_a, a.View(), form_b, b.View(), want.View(),
                              accumulate);
      for (const kernels::ProductSet& set : kernels::UsableProductSets()) {
        const Held<float> got = start;
        kernels::RoundedMultiply(
            set, kStream, {form_a, plain_a.View(), form_b, plain_b.View(), got.View(), accumulate});
        EXPECT_TRUE(got.SameBits(want)) << set.name << ", variant " << variant;
      }
      if (!kernels::HasFastKernels()) continue;
      const Held<float> seam = start, rows = start;
      SeamByFp32(kStream, form_a, plain_a.View(), form_b, plain_b.View(), seam.View(), accumulate);
      EXPECT_TRUE(seam.SameBits(want)) << "variant " << variant;
      const FunctionRef<void(const Part&)> then = [](const Part&) {};
      kernels::RoundedMultiply(
          kernels::UsableProductSets()[0], kStream,
          {form_a, plain_a.View(), form_b, plain_b.View(), rows.View(), accumulate}, &then);
      EXPECT_TRUE(rows.SameBits(want)) << "variant " << variant;
    }
  }
}

// More shapes than are kept, and each of them again.
TEST_F(Bf16MultiplyTest, ManyShapes) {
  if (kernels::UsableBf16Kernels() == nullptr) GTEST_SKIP() << "this CPU multiplies no bf16";
  constexpr std::int64_t kRows = 133;
  const Held<float> a(kRows, 4, 0, 0, 1), b(4, 6, 0, 0, 2), c(kRows, 6, 0, 0), want(kRows, 6, 0, 0);
  Own(kStream, Form::kPlain, a.View(), Form::kPlain, b.View(), want.View(), false);
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t rows = 1; rows <= (round == 0 ? kRows : 10); ++rows) {
      kernels::LibraryBf16Multiply(kStream, {Form::kPlain, a.View().Rows(0, rows), Form::kPlain,
                                             b.View(), c.View().Rows(0, rows), false});
      ASSERT_NEAR(c.At(rows - 1, 5), want.At(rows - 1, 5), 1e-5) << rows;
    }
  }
}

TEST_F(Bf16MultiplyTest, Fp64KeepsItsPrecision) {
  const Held<double> a(9, 30, 0, 0, 1), b(30, 11, 0, 0, 2), bf16(9, 11, 0, 0), plain(9, 11, 0, 0);
  kernels::MatrixMultiply(kStream, Form::kPlain, a.View(), Form::kPlain, b.View(), bf16.View(),
                          false);
  kernels::MatrixMultiply({}, Form::kPlain, a.View(), Form::kPlain, b.View(), plain.View(), false);
  EXPECT_TRUE(bf16.SameBits(plain));
}

std::string ErrorOf(const device::Stream& stream) {
  const Held<float> a(2, 2, 0, 0, 1), c(2, 2, 0, 0);
  try {
    kernels::MatrixMultiply(stream, Form::kPlain, a.View(), Form::kPlain, a.View(), c.View(),
                            false);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(Bf16MultiplyTest, HasNoCanonicalForm) {
  device::Stream stream = kStream;
  stream.canonical = true;
  EXPECT_NE(ErrorOf(stream).find("no canonical product in bf16"), std::string::npos);
}

TEST(Bf16Multiply, NeedsItsInstructions) {
  if (!device::Bf16Instructions().empty()) GTEST_SKIP() << "this CPU multiplies bf16";
  EXPECT_NE(ErrorOf(kStream).find("no instructions that multiply bf16"), std::string::npos);
}

}  // namespace
}  // namespace trireme::test
