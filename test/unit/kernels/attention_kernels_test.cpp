// Pieces of attention's tiles, for every instruction set of this CPU, against plain loops in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/attention_call.hpp"

namespace trireme::kernels {
namespace {

constexpr double kFp32 = 5e-7, kFp64 = 1e-14;  // relative to a result's largest term
constexpr std::int64_t kMargin = kAttentionPad;

template <typename T>
class AttentionKernelsTest : public testing::Test {
 protected:
  using Values = std::vector<T>;
  static double Tolerance() { return sizeof(T) == 4 ? kFp32 : kFp64; }
  static const AttentionKernelsOf<T>& Of(const AttentionKernels& all) {
    if constexpr (sizeof(T) == 4) {
      return all.fp32;
    } else {
      return all.fp64;
    }
  }
  Values Random(std::int64_t count, double scale = 1) {
    Values values(static_cast<std::size_t>(count));
    for (T& value : values) {
      value = static_cast<T>(scale * (static_cast<double>(engine_() % 4097) / 2048 - 1));
    }
    return values;
  }
  static Values Filled(std::int64_t count, double value) {
    return Values(static_cast<std::size_t>(count), static_cast<T>(value));
  }
  static std::int64_t Padded(std::int64_t count) {
    return (count + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
  }
  template <typename Body>
  void ForEach(Body body) {
    for (const AttentionKernels& all : UsableAttentionKernels()) {
      SCOPED_TRACE(all.name);
      body(Of(all));
    }
  }
  std::mt19937 engine_{7};
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(AttentionKernelsTest, Types);

TYPED_TEST(AttentionKernelsTest, PacksRowsAndColumnsWithZerosBehind) {
  using T = TypeParam;
  this->ForEach([&](const AttentionKernelsOf<T>& kernels) {
    for (const auto& [rows, columns] : {std::pair{1, 1}, {16, 16}, {5, 33}, {33, 5}, {40, 48}}) {
      const std::int64_t stride = columns + 3, wide = this->Padded(columns) + kAttentionPad;
      const std::int64_t tall = this->Padded(rows) + kAttentionPad;
      const auto from = this->Random(rows * stride);
      auto packed = this->Filled(rows * wide, 9), transposed = this->Filled(columns * tall, 9);
      kernels.pack(from.data(), stride, rows, columns, packed.data(), wide);
      kernels.pack_transposed(from.data(), stride, rows, columns, T(0.5), transposed.data(), tall);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t k = 0; k < wide; ++k) {
          const T want = k < columns ? from[i * stride + k] : k < this->Padded(columns) ? 0 : 9;
          ASSERT_EQ(packed[i * wide + k], want) << rows << " x " << columns;
        }
      }
      for (std::int64_t k = 0; k < columns; ++k) {
        for (std::int64_t i = 0; i < tall; ++i) {
          const T want = i < rows ? from[i * stride + k] / 2 : i < this->Padded(rows) ? 0 : 9;
          ASSERT_EQ(transposed[k * tall + i], want) << rows << " x " << columns;
        }
      }
    }
  });
}

TYPED_TEST(AttentionKernelsTest, MultipliesAndKeeps) {
  using T = TypeParam;
  this->ForEach([&](const AttentionKernelsOf<T>& kernels) {
    for (std::int64_t rows = 1; rows <= kernels.rows; ++rows) {
      for (const std::int64_t columns : {1, 5, 16, 31, 32, 64, 80}) {
        for (const bool transposed : {false, true}) {
          const std::int64_t inner = 37, stride = this->Padded(columns), c_stride = columns + 2;
          const auto a = this->Random(rows * inner), b = this->Random(inner * stride);
          const auto keep = this->Random(rows), before = this->Random(rows * c_stride);
          const std::int64_t a_row = transposed ? 1 : inner, a_inner = transposed ? rows : 1;
          auto kept = before, written = before;
          std::fill(written.begin(), written.end(), std::numeric_limits<T>::quiet_NaN());
          kernels.multiply(rows, columns, inner, a.data(), a_row, a_inner, b.data(), stride,
                           keep.data(), kept.data(), c_stride);
          kernels.multiply(rows, columns, inner, a.data(), a_row, a_inner, b.data(), stride,
                           nullptr, written.data(), c_stride);
          for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t j = 0; j < c_stride; ++j) {
              const std::int64_t at = i * c_stride + j;
              if (j >= columns) {
                ASSERT_EQ(kept[at], before[at]) << "behind a row";
                ASSERT_TRUE(std::isnan(written[at])) << "behind a row";
                continue;
              }
              double sum = 0;
              for (std::int64_t k = 0; k < inner; ++k) {
                sum += static_cast<double>(a[i * a_row + k * a_inner]) * b[k * stride + j];
              }
              ASSERT_NEAR(written[at], sum, 20 * this->Tolerance());
              ASSERT_NEAR(kept[at], sum + static_cast<double>(keep[i]) * before[at],
                          20 * this->Tolerance());
            }
          }
        }
      }
    }
  });
}

// Keys of other documents: scores of minus infinity, all of them in row 3.
template <typename Scores>
void HideSome(Scores& scores, std::int64_t stride, std::int64_t keys) {
  using T = std::remove_reference_t<decltype(scores[0])>;
  const std::int64_t hidden[][2] = {{3, keys}, {5, 1}, {6, 18}};
  for (const auto& [row, count] : hidden) {
    for (std::int64_t j = 0; j < count; ++j) {
      scores[static_cast<std::size_t>(row * stride + j)] = -std::numeric_limits<T>::infinity();
    }
  }
}

// Rows that see all, some, one or no keys; maxima that rise, stay, and are the first; scores so far
// below the maximum that their weight is zero.
TYPED_TEST(AttentionKernelsTest, SoftmaxGoesOnFromTile) {
  using T = TypeParam;
  constexpr std::int64_t kRows = 8, kKeys = 37, kStride = 64;
  for (const double scale : {1.0, 300.0}) {
    for (const AttentionVisible& visible :
         {AttentionVisible{kKeys, 0, kKeys}, {-2, 1, kKeys}, {kKeys - 3, 1, kKeys}}) {
      this->ForEach([&](const AttentionKernelsOf<T>& kernels) {
        auto scores = this->Random(kRows * kStride, scale);
        HideSome(scores, kStride, kKeys);
        auto s = scores, top = this->Random(kRows + kMargin, 0.01), sum = top, keep = top;
        for (std::int64_t i = 0; i < kRows + kMargin; ++i) sum[i] = T(1 + i);
        top[3] = std::numeric_limits<T>::lowest();  // no keys so far
        sum[3] = 0;
        const auto top_before = top, sum_before = sum;
        kernels.softmax(kRows, visible, s.data(), kStride, top.data(), sum.data(), keep.data());
        for (std::int64_t i = 0; i < kRows; ++i) {
          const std::int64_t seen =
              std::clamp<std::int64_t>(visible.first + i * visible.step, 0, kKeys);
          double most = top_before[i], total = 0;
          for (std::int64_t j = 0; j < seen; ++j) {
            most = std::max<double>(most, scores[i * kStride + j]);
          }
          for (std::int64_t j = 0; j < this->Padded(kKeys); ++j) {
            const double want = j < seen ? std::exp2(scores[i * kStride + j] - most) : 0;
            total += want;
            ASSERT_NEAR(s[i * kStride + j], want, this->Tolerance()) << i << ", " << j;
          }
          const double kept = std::exp2(top_before[i] - most);
          EXPECT_EQ(top[i], static_cast<T>(most));
          EXPECT_NEAR(keep[i], kept, this->Tolerance());
          EXPECT_NEAR(sum[i], kept * sum_before[i] + total, 40 * this->Tolerance());
        }
        EXPECT_TRUE(std::equal(top.begin() + kRows, top.end(), top_before.begin() + kRows));
        EXPECT_TRUE(std::equal(sum.begin() + kRows, sum.end(), sum_before.begin() + kRows));
      });
    }
  }
}

TYPED_TEST(AttentionKernelsTest, WhatIsNoNumberStaysNone) {
  using T = TypeParam;
  this->ForEach([&](const AttentionKernelsOf<T>& kernels) {
    auto s = this->Random(3 * 16), keep = this->Filled(kMargin, 0);
    auto top = this->Filled(3 + kMargin, std::numeric_limits<T>::lowest());
    auto sum = this->Filled(3 + kMargin, 0), out = this->Filled(3, 1), lse = out;
    s[16] = std::numeric_limits<T>::quiet_NaN();
    kernels.softmax(3, {16, 0, 16}, s.data(), 16, top.data(), sum.data(), keep.data());
    kernels.finish(3, 1, top.data(), sum.data(), out.data(), 1, lse.data(), 1);
    EXPECT_TRUE(std::isnan(lse[1]) && std::isnan(out[1]));
    EXPECT_TRUE(std::isfinite(lse[0]) && std::isfinite(out[0]) && std::isfinite(lse[2]));
  });
}

TYPED_TEST(AttentionKernelsTest, FinishesAndMultipliesRows) {
  using T = TypeParam;
  this->ForEach([&](const AttentionKernelsOf<T>& kernels) {
    for (const std::int64_t columns : {3, 16, 21}) {
      const std::int64_t rows = 19, stride = columns + 1;
      const auto top = this->Random(rows + kMargin, 50), x = this->Random(rows * stride);
      auto sum = this->Random(rows + kMargin), out = x, lse = this->Filled(2 * rows, 0);
      for (std::int64_t i = 0; i < rows + kMargin; ++i) {
        sum[i] = T(1 + std::abs(sum[i]) * std::pow(10.0, static_cast<double>(i % 5)));
      }
      sum[4] = 0;
      kernels.finish(rows, columns, top.data(), sum.data(), out.data(), stride, lse.data(), 2);
      auto dot = this->Filled(rows + kMargin, 0);
      kernels.dot(rows, columns, x.data(), stride, out.data(), stride, dot.data());
      for (std::int64_t i = 0; i < rows; ++i) {
        double product = 0;
        for (std::int64_t j = 0; j < columns; ++j) {
          const double want = i == 4 ? 0 : static_cast<double>(x[i * stride + j]) / sum[i];
          ASSERT_NEAR(out[i * stride + j], want, this->Tolerance());
          product += static_cast<double>(x[i * stride + j]) * out[i * stride + j];
        }
        EXPECT_NEAR(dot[i], product, 10 * this->Tolerance());
        if (i == 4) {
          EXPECT_EQ(lse[2 * i], -std::numeric_limits<T>::infinity());
        } else {
          EXPECT_NEAR(lse[2 * i], std::log(2.0) * top[i] + std::log(static_cast<double>(sum[i])),
                      40 * this->Tolerance());
        }
      }
    }
  });
}

TYPED_TEST(AttentionKernelsTest, GradientOfWeights) {
  using T = TypeParam;
  constexpr std::int64_t kRows = 9, kKeys = 41, kStride = 64;
  for (const AttentionVisible& visible : {AttentionVisible{kKeys, 0, kKeys}, {-1, 1, kKeys}}) {
    this->ForEach([&](const AttentionKernelsOf<T>& kernels) {
      auto scores = this->Random(kRows * kStride, 9);
      const auto slopes = this->Random(kRows * kStride);
      HideSome(scores, kStride, kKeys);
      const auto inner = this->Random(kRows);
      auto p = scores, d = slopes, lse = this->Filled(kRows, 9);
      lse[2] = 500;  // all weights vanish
      kernels.gradient(kRows, visible, T(0.25), lse.data(), inner.data(), p.data(), d.data(),
                       kStride);
      for (std::int64_t i = 0; i < kRows; ++i) {
        const std::int64_t seen =
            std::clamp<std::int64_t>(visible.first + i * visible.step, 0, kKeys);
        for (std::int64_t j = 0; j < this->Padded(kKeys); ++j) {
          const std::int64_t at = i * kStride + j;
          const double weight = j < seen ? std::exp2(static_cast<double>(scores[at]) - lse[i]) : 0;
          ASSERT_NEAR(p[at], weight, this->Tolerance());
          ASSERT_NEAR(d[at], 0.25 * weight * (static_cast<double>(slopes[at]) - inner[i]),
                      this->Tolerance());
        }
      }
    });
  }
}

}  // namespace
}  // namespace trireme::kernels
