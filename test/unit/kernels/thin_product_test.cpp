// Products with few rows, by every set of kernels that this CPU can run, against a plain loop.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include "held_matrix.hpp"
#include "kernels/cpu/thin_product.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::test {
namespace {

using kernels::Form;

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
  const std::int64_t bytes = kernels::PanelBytes(form, w.View());
  const std::unique_ptr<void, decltype(&std::free)> panels(
      std::aligned_alloc(64, static_cast<std::size_t>(bytes)), &std::free);
  kernels::PackPanels({.threads = 3}, form, w.View(), panels.get());
  for (std::int64_t i = 0; i < w.View().rows; ++i) {
    for (std::int64_t j = 0; j < w.View().columns; ++j)
      w(i, j) = std::numeric_limits<T>::quiet_NaN();
  }
  for (const int threads : {1, 3}) {
    kernels::ThinMultiply(kernels, {.threads = threads}, x.View(), form, w.View(), again.View(),
                          panels.get());
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
