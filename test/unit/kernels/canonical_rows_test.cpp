// Kernels other than products that have the same bits whatever the layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>
#include "held_matrix.hpp"

#include "held_matrix.hpp"
#include "kernels/cpu/philox_lanes.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::test {
namespace {

using device::Stream;
using kernels::ActivationKind;
using kernels::Matrix;

// Row kernels: an element's bits depend on neither the slice of the columns nor its place in
// memory, and sums over a row on neither its place in memory nor the threads.

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kOffsets[] = {0, 1, 3, 8, 13};
const std::vector<std::uint64_t> kRowOrdinals = {7, 3, 11};

// An operand of a kernel: `blocks` equal groups of columns, each of which is sliced.
struct Spec {
  std::int64_t rows = kRows, blocks = 1;
  double scale = 2;
};
using Operands = std::vector<Matrix>;
// Runs on operands that hold columns [part.begin, part.end) of each block; returns what else has to
// be the same.
using Kernel = std::function<std::vector<double>(const Stream&, const Operands&, const Part& part)>;

template <typename T>
std::vector<Held<T>> Make(const std::vector<Spec>& specs, std::int64_t width) {
  std::vector<Held<T>> operands;
  for (const Spec& spec : specs) {
    operands.emplace_back(spec.rows, spec.blocks * width, 0, 0,
                          static_cast<std::uint32_t>(operands.size() + 1), spec.scale);
  }
  return operands;
}

// Columns of each block of a whole operand, elsewhere in memory.
template <typename T>
Held<T> Slice(const Held<T>& whole, const Spec& spec, const Part& part, std::int64_t offset) {
  Held<T> slice(spec.rows, spec.blocks * part.Size(), offset, offset);
  const std::int64_t width = whole.View().columns / spec.blocks;
  for (std::int64_t i = 0; i < spec.rows; ++i) {
    for (std::int64_t j = 0; j < slice.View().columns; ++j) {
      slice(i, j) = whole.At(i, j / part.Size() * width + part.begin + j % part.Size());
    }
  }
  return slice;
}

template <typename T>
void ExpectSame(const Held<T>& got, const Held<T>& want, const std::string& what) {
  for (std::int64_t i = 0; i < got.View().rows; ++i) {
    for (std::int64_t j = 0; j < got.View().columns; ++j) {
      const T x = got.At(i, j), y = want.At(i, j);
      ASSERT_EQ(std::memcmp(&x, &y, sizeof(T)), 0)
          << what << ": row " << i << ", column " << j << " is " << x << ", not " << y;
    }
  }
}

Operands Views(const auto& operands) {
  Operands views;
  for (const auto& operand : operands) views.push_back(operand.View());
  return views;
}

// The parts of a whole of `width` columns against the whole.
template <typename T>
void CheckParts(const std::vector<Spec>& specs, std::int64_t width, const std::vector<Part>& parts,
                const Kernel& kernel) {
  const std::vector<Held<T>> start = Make<T>(specs, width);
  const std::vector<Held<T>> whole = start;
  const auto want = kernel({.threads = 1, .canonical = true}, Views(whole), Part{0, width});
  for (const Part& part : parts) {
    for (const std::int64_t offset : kOffsets) {
      const int threads = static_cast<int>(1 + offset % 3);
      std::vector<Held<T>> operands;
      for (std::size_t i = 0; i < specs.size(); ++i) {
        operands.push_back(Slice(start[i], specs[i], part, offset * static_cast<int>(1 + i)));
      }
      const auto got = kernel({.threads = threads, .canonical = true}, Views(operands), part);
      const std::string what = "[" + std::to_string(part.begin) + ", " + std::to_string(part.end) +
                               ") at offset " + std::to_string(offset);
      for (std::size_t i = 0; i < specs.size(); ++i) {
        ExpectSame(operands[i], Slice(whole[i], specs[i], part, 0),
                   what + ", operand " + std::to_string(i));
        if (testing::Test::HasFatalFailure()) return;
      }
      if (part.Size() == width) {
        EXPECT_EQ(got, want) << what;
      }
    }
  }
}

// A map: any columns of it.
template <typename T>
void CheckMap(const std::vector<Spec>& specs, const Kernel& kernel) {
  constexpr std::int64_t kWidth = 331;
  std::vector<Part> parts = {{0, kWidth}};
  for (const std::int64_t begin : {0, 1, 7, 16, 200}) {
    for (const std::int64_t size : {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 64, 100, 131}) {
      parts.push_back({begin, begin + size});
    }
  }
  CheckParts<T>(specs, kWidth, parts, kernel);
}

// Sums over a row: all columns of it, elsewhere in memory.
template <typename T>
void CheckSums(const std::vector<Spec>& specs, const Kernel& kernel) {
  for (const std::int64_t width : {1,  2,  3,  7,   8,   9,   15,   16,   17,   31,   33,
                                   63, 64, 65, 100, 128, 257, 1000, 1024, 1025, 2047, 3001}) {
    CheckParts<T>(specs, width, {{0, width}}, kernel);
  }
}

kernels::Dropout DropoutOf(const Part& part) {
  kernels::Dropout dropout{0.25, 1234, Purpose::kFfnDropout, 3, 1, kRowOrdinals.data(), 2};
  dropout.first_feature = part.begin;
  return dropout;
}

template <typename T>
class CanonicalRowsTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(CanonicalRowsTest, Types);

TYPED_TEST(CanonicalRowsTest, Additions) {
  CheckMap<TypeParam>({{}, {1}}, [](const Stream& s, const Operands& o, const Part&) {
    kernels::AddBias(s, o[0], o[1]);
    return std::vector<double>();
  });
  CheckMap<TypeParam>({{}, {}}, [](const Stream& s, const Operands& o, const Part&) {
    kernels::Add(s, o[0], o[1]);
    return std::vector<double>();
  });
  CheckMap<TypeParam>({{}, {}, {1}, {}}, [](const Stream& s, const Operands& o, const Part& part) {
    kernels::ResidualForward(s, o[0], o[1], o[2], DropoutOf(part), o[3]);
    return std::vector<double>();
  });
  CheckMap<TypeParam>({{}, {}}, [](const Stream& s, const Operands& o, const Part& part) {
    kernels::DropoutForward(s, o[0], DropoutOf(part), o[1]);
    return std::vector<double>();
  });
}

TYPED_TEST(CanonicalRowsTest, Activations) {
  for (const auto kind : {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kSwiglu}) {
    const std::int64_t blocks = kind == ActivationKind::kSwiglu ? 2 : 1;
    CheckMap<TypeParam>({{kRows, blocks, 4}, {1, blocks}, {}},
                        [kind](const Stream& s, const Operands& o, const Part& part) {
                          kernels::ActivationForward(s, kind, o[0], o[1], DropoutOf(part), o[2]);
                          return std::vector<double>();
                        });
    CheckMap<TypeParam>({{kRows, blocks, 4}, {}, {kRows, blocks}},
                        [kind](const Stream& s, const Operands& o, const Part& part) {
                          kernels::ActivationBackward(s, kind, o[0], DropoutOf(part), o[1], o[2]);
                          return std::vector<double>();
                        });
  }
}

TYPED_TEST(CanonicalRowsTest, Embedding) {
  static const std::int32_t kTokens[kRows] = {12, 10, 12, 11, 99};
  CheckMap<TypeParam>({{3}, {}}, [](const Stream& s, const Operands& o, const Part&) {
    kernels::EmbeddingForward(s, kTokens, 10, o[0], 0.7, o[1]);
    return std::vector<double>();
  });
  CheckMap<TypeParam>({{3}, {}}, [](const Stream& s, const Operands& o, const Part&) {
    kernels::EmbeddingBackward(s, kTokens, 10, 0.7, o[1], o[0]);
    return std::vector<double>();
  });
  CheckMap<TypeParam>({{2}, {}}, [](const Stream& s, const Operands& o, const Part& part) {
    kernels::PositionForward(s, o[0], nullptr, DropoutOf(part), o[1]);
    kernels::PositionBackward(s, nullptr, DropoutOf(part), o[1], o[0]);
    return std::vector<double>();
  });
}

// Flat storage: rows of one.
TYPED_TEST(CanonicalRowsTest, Updates) {
  static const kernels::UpdateScalars kScalars = {3e-3, 0.9, 0.98, 1e-8, 0.1, 0.02, 0.37};
  CheckMap<TypeParam>({{1}, {1}, {1}, {1}}, [](const Stream& s, const Operands& o, const Part&) {
    for (std::int64_t i = 0; i < o[3].columns; ++i) {
      o[3].template As<TypeParam>()[i] = std::abs(o[3].template As<TypeParam>()[i]);
    }
    const kernels::UpdateRange range{o[0].columns, 0.1, o[0].data, o[1].data, o[2].data, o[3].data};
    kernels::AdamW(s, o[0].dtype, {&range, 1}, &kScalars, false);
    return std::vector<double>();
  });
  CheckMap<TypeParam>({{1}, {1}}, [](const Stream& s, const Operands& o, const Part&) {
    const kernels::UpdateRange range{o[0].columns, 0.1, o[0].data, o[1].data};
    kernels::GradientDescent(s, o[0].dtype, {&range, 1}, &kScalars, false);
    return std::vector<double>();
  });
  CheckMap<TypeParam>({{1}, {1}}, [](const Stream& s, const Operands& o, const Part&) {
    kernels::Accumulate(s, o[0].dtype, o[0].columns, o[0].data, o[1].data);
    return std::vector<double>();
  });
  CheckSums<TypeParam>({{1}}, [](const Stream& s, const Operands& o, const Part&) {
    return std::vector<double>{kernels::SquareSumOf(s, o[0].dtype, o[0].columns, o[0].data)};
  });
}

// Sums over rows, column by column.
TYPED_TEST(CanonicalRowsTest, ColumnSums) {
  CheckMap<TypeParam>({{37}, {1}}, [](const Stream& s, const Operands& o, const Part&) {
    const Held<TypeParam> scratch(kernels::kReductionBlocks, o[0].columns, 0, 0);
    kernels::ColumnSum(s, o[0], o[1], scratch.View());
    return std::vector<double>();
  });
  CheckMap<TypeParam>({{37}, {37}, {1}, {1}}, [](const Stream& s, const Operands& o, const Part&) {
    const Held<TypeParam> scratch(kernels::kReductionBlocks, 2 * o[0].columns, 0, 0);
    const Held<TypeParam> statistics(37, 2, 0, 0, 9);
    kernels::NormBackwardWeight(s, o[0], o[1], statistics.View(), o[2], o[3], scratch.View());
    return std::vector<double>();
  });
}

TYPED_TEST(CanonicalRowsTest, Norms) {
  for (const auto kind : {kernels::NormKind::kLayerNorm, kernels::NormKind::kRmsNorm}) {
    for (const bool accumulate : {false, true}) {
      CheckSums<TypeParam>(
          {{}, {1}, {1}, {}, {}, {}},
          [kind, accumulate](const Stream& s, const Operands& o, const Part&) {
            const Held<TypeParam> statistics(kRows, 2, 0, 0);
            kernels::NormForward(s, kind, o[0], o[1], o[2], 1e-5, o[3], statistics.View());
            kernels::NormBackward(s, {.kind = kind,
                                      .dy = o[4],
                                      .x = o[0],
                                      .weight = o[1],
                                      .statistics = statistics.View(),
                                      .residual = accumulate ? o[5] : kernels::Matrix{},
                                      .dx = o[5]});
            return std::vector<double>();
          });
    }
  }
}

TYPED_TEST(CanonicalRowsTest, FusedNorms) {
  for (const auto kind : {kernels::NormKind::kLayerNorm, kernels::NormKind::kRmsNorm}) {
    CheckSums<TypeParam>(
        {{}, {}, {1}, {1}, {}, {}, {}, {1}, {1}},
        [kind](const Stream& s, const Operands& o, const Part& part) {
          const Held<TypeParam> statistics(kRows, 2, 0, 0);
          const Held<TypeParam> scratch(kernels::kReductionBlocks, 2 * part.Size(), 0, 0);
          kernels::ResidualNormForward(s, kind, o[0], o[1], o[2], DropoutOf(part), o[0], o[3], o[2],
                                       1e-5, o[4], statistics.View());
          kernels::NormBackward(s, {.kind = kind,
                                    .dy = o[1],
                                    .more = o[4],
                                    .x = o[0],
                                    .weight = o[3],
                                    .statistics = statistics.View(),
                                    .residual = o[5],
                                    .dropout = DropoutOf(part),
                                    .dx = o[5],
                                    .dbranch = o[6],
                                    .dweight = o[7],
                                    .dbias = o[8],
                                    .scratch = scratch.View()});
          return std::vector<double>();
        });
  }
}

TYPED_TEST(CanonicalRowsTest, CrossEntropies) {
  static const std::int32_t kTargets[kRows] = {0, 0, -1, 0, 0};
  CheckSums<TypeParam>({{kRows, 1, 8}}, [](const Stream& s, const Operands& o, const Part&) {
    std::vector<double> losses(kRows);
    kernels::CrossEntropy(s, o[0], kTargets, {0.1}, true, losses.data());
    return losses;
  });
  CheckSums<TypeParam>({{kRows, 1, 8}}, [](const Stream& s, const Operands& o, const Part&) {
    std::vector<double> numbers(kRows * (kernels::kSoftmaxStatistics + 1));
    double* losses = numbers.data() + kRows * kernels::kSoftmaxStatistics;
    kernels::SoftmaxStatistics(s, o[0], kTargets, 0, numbers.data());
    kernels::CrossEntropySlice(s, o[0], kTargets, 0, o[0].columns, {0.1}, true, numbers.data(), 1,
                               0, losses);
    return numbers;
  });
}

// The gradient of a slice of the vocabulary, given the statistics of the whole.
TYPED_TEST(CanonicalRowsTest, CrossEntropyGradient) {
  static const std::int32_t kTargets[kRows] = {0, 17, -1, 203, 330};
  CheckMap<TypeParam>({{}}, [](const Stream& s, const Operands& o, const Part& part) {
    std::vector<double> statistics, losses(kRows);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (const double number : {3.25, 41.7, -1.3, 12.9}) statistics.push_back(number);
    }
    kernels::CrossEntropySlice(s, o[0], kTargets, static_cast<std::int32_t>(part.begin), 331, {0.1},
                               true, statistics.data(), 1, 0, losses.data());
    return losses;
  });
}

// Any heads of attention with rotated positions.
TYPED_TEST(CanonicalRowsTest, Heads) {
  for (const std::int64_t head_dim : {6, 16, 32}) {
    constexpr std::int64_t kHeads = 5, kLength = 70;
    std::vector<Part> parts;
    for (const Part heads : {Part{0, 5}, Part{0, 1}, Part{1, 4}, Part{3, 5}}) {
      parts.push_back({heads.begin * head_dim, heads.end * head_dim});
    }
    const Spec rows{2 * kLength, 1, 2}, qkv{2 * kLength, 3, 2};
    CheckParts<TypeParam>(
        {qkv, rows, rows, qkv}, kHeads * head_dim, parts,
        [head_dim](const Stream& s, const Operands& o, const Part& part) {
          const std::int64_t heads = part.Size() / head_dim;
          const kernels::AttentionShape shape{2,     kLength,  heads,
                                              heads, head_dim, part.begin / head_dim};
          kernels::Dropout dropout = DropoutOf({});
          dropout.purpose = Purpose::kAttentionDropout;
          dropout.length = kLength;
          const Held<TypeParam> table(kLength, head_dim, 0, 0);
          kernels::RopeTable(10000, table.View());
          kernels::Rope(s, shape, table.View(), false, o[0]);
          const Held<TypeParam> lse(2 * kLength, heads, 0, 0);
          const Held<TypeParam> scratch(
              1, kernels::AttentionScratch({.threads = s.threads}, shape, Dtype::kFloat64, true), 0,
              0);
          kernels::AttentionForward(s, shape, o[0], dropout, o[1], lse.View(), scratch.View());
          kernels::AttentionBackward(s, shape, o[0], dropout, o[1], o[2], lse.View(), o[3],
                                     scratch.View());
          kernels::Rope(s, shape, table.View(), true, o[3]);
          return std::vector<double>();
        });
  }
}

// Exact square sums and accumulation over flat storage.

template <typename T>
class CanonicalUpdateTest : public testing::Test {
 protected:
  static std::vector<T> Values(std::int64_t count) {
    std::mt19937_64 engine(1);
    std::normal_distribution<double> normal;
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& value : values) {
      value = static_cast<T>(std::ldexp(normal(engine), static_cast<int>(engine() % 80) - 40));
    }
    return values;
  }
  static double SquareSum(const std::vector<T>& values, int threads) {
    ExactSum sum;
    const kernels::FlatRange range{std::ssize(values), values.data()};
    kernels::ExactSquareSum({.threads = threads}, DtypeOf<T>(), {&range, 1}, sum);
    return sum.Value();
  }
};
TYPED_TEST_SUITE(CanonicalUpdateTest, Types);

TYPED_TEST(CanonicalUpdateTest, SquareSumIsThatOfEachSquare) {
  for (const std::int64_t count : {0, 1, 17, 2047, 2048, 9999, 1'100'000}) {
    auto values = this->Values(count);
    ExactSum want;
    for (const auto value : values) want.Add(static_cast<double>(value) * value);
    EXPECT_EQ(this->SquareSum(values, 1), want.Value()) << count;
    std::reverse(values.begin(), values.end());
    EXPECT_EQ(this->SquareSum(values, 2), want.Value()) << count;
    EXPECT_EQ(this->SquareSum(values, 3), want.Value()) << count;
  }
}

TYPED_TEST(CanonicalUpdateTest, SquareSumAddsToWhatIsThere) {
  const auto values = this->Values(5000);
  ExactSum want, got;
  for (const auto value : values) want.Add(static_cast<double>(value) * value);
  want.Add(want);
  for (const std::size_t cut : {0, 3000}) {
    for (const bool first : {true, false}) {
      const std::size_t begin = first ? 0 : cut, end = first ? cut : values.size();
      const kernels::FlatRange range{static_cast<std::int64_t>(end - begin), values.data() + begin};
      kernels::ExactSquareSum({}, DtypeOf<TypeParam>(), {&range, 1}, got);
    }
  }
  EXPECT_EQ(got.Digits(), want.Digits());
}

TYPED_TEST(CanonicalUpdateTest, ZerosTheSmallestAndTheLargest) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  std::vector<T> values(5000, T(0));
  EXPECT_EQ(this->SquareSum(values, 2), 0);
  values[7] = Limits::denorm_min();
  values[8] = static_cast<T>(0x1p-531);  // square subnormal in fp64
  values[9] = -Limits::max();
  ExactSum want;
  for (const T value : values) want.Add(static_cast<double>(value) * value);
  EXPECT_EQ(this->SquareSum(values, 2), want.Value());
}

TYPED_TEST(CanonicalUpdateTest, WhatIsNotFiniteShows) {
  using T = TypeParam;
  for (const std::int64_t count : {100, 5000}) {
    std::vector<T> values = this->Values(count);
    values[60] = -std::numeric_limits<T>::infinity();
    EXPECT_EQ(this->SquareSum(values, 2), HUGE_VAL);
    values[99] = std::copysign(std::numeric_limits<T>::quiet_NaN(), T(-1));
    EXPECT_TRUE(std::isnan(this->SquareSum(values, 2)));
  }
}

TYPED_TEST(CanonicalUpdateTest, AccumulateAddsEachElement) {
  for (const std::int64_t count : {0, 1, 100, 20'011}) {
    const auto from = this->Values(count);
    for (const int threads : {1, 2, 3}) {
      auto to = this->Values(count);
      std::reverse(to.begin(), to.end());
      auto want = to;
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += from[i];
      kernels::Accumulate({.threads = threads}, DtypeOf<TypeParam>(), count, from.data(),
                          to.data());
      EXPECT_EQ(to, want);
    }
  }
}

// Dropout's lanes from every implementation for this CPU, against the plain function.

std::vector<std::uint16_t> Plain(const kernels::PhiloxRow& row, std::int64_t n) {
  std::vector<std::uint16_t> lanes;
  for (std::int64_t i = 0; i < n; ++i) {
    const PhiloxCounter words = Philox(
        {row.c0 + static_cast<std::uint32_t>(i / 8), row.c1, row.c2, row.c3}, {row.k0, row.k1});
    const std::uint32_t word = words[static_cast<std::size_t>(i % 8 / 2)];
    lanes.push_back(static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16));
  }
  return lanes;
}

TEST(PhiloxLanes, AreThoseOfThePlainFunction) {
  const kernels::PhiloxRow rows[] = {
      {1, 2, 3, 4, 5, 6},
      {0xFFFFFFFF, 0x80000000, 0xFFFFFFFB, 0, 0xDEADBEEF, 0x12345678},
      {0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}};
  ASSERT_FALSE(kernels::UsablePhiloxLanes().empty());
  for (const kernels::PhiloxLanesKernel& kernel : kernels::UsablePhiloxLanes()) {
    for (const auto& row : rows) {
      for (const std::int64_t n : {1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 768, 1000}) {
        constexpr std::uint16_t kMark = 0xA5A5;
        const auto room = static_cast<std::size_t>((n + 7) / 8 * 8);
        std::vector<std::uint16_t> lanes(room + 300, kMark);
        kernel.fill(row, n, lanes.data());
        for (std::size_t i = room; i < lanes.size(); ++i) {
          ASSERT_EQ(lanes[i], kMark) << kernel.name << " wrote beyond the last counter";
        }
        lanes.resize(static_cast<std::size_t>(n));
        EXPECT_EQ(lanes, Plain(row, n)) << kernel.name << ", " << n << " lanes";
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
