// Operands and comparison of the kernel tests.
#include "kernel_testing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace trireme::test {

namespace {

constexpr std::int64_t kMargin = 32;  // elements before and behind the matrix
constexpr double kMark = -77777;      // exact in either type

}  // namespace

std::vector<Setting> AllSettings() {
  std::vector<Setting> settings;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const int threads : {1, 2}) {
      for (const std::int64_t padding : {0, 5}) settings.push_back({dtype, threads, padding});
    }
  }
  return settings;
}

std::string NameOf(const testing::TestParamInfo<Setting>& info) {
  return std::string(trireme::NameOf(info.param.dtype)) + "_threads" +
         std::to_string(info.param.threads) + (info.param.padding > 0 ? "_strided" : "_dense");
}

Array Random(std::int64_t rows, std::int64_t columns, std::uint32_t seed, double scale) {
  std::mt19937_64 engine(seed);
  Array array(rows, columns);
  for (double& value : array.values) {
    const double uniform = static_cast<double>(engine() >> 11) * 0x1p-52 - 1;
    value = static_cast<double>(static_cast<float>(scale * uniform));
  }
  return array;
}

Array Poison(std::int64_t rows, std::int64_t columns) {
  Array array(rows, columns);
  for (double& value : array.values) value = std::numeric_limits<double>::quiet_NaN();
  return array;
}

Array SliceOf(const Array& whole, const Part& rows, const Part& columns) {
  Array slice(rows.Size(), columns.Size());
  for (std::int64_t i = 0; i < slice.rows; ++i) {
    for (std::int64_t j = 0; j < slice.columns; ++j) {
      slice(i, j) = whole(rows.begin + i, columns.begin + j);
    }
  }
  return slice;
}

void PlaceSlice(const Array& slice, std::int64_t row, std::int64_t column, Array& whole) {
  for (std::int64_t i = 0; i < slice.rows; ++i) {
    for (std::int64_t j = 0; j < slice.columns; ++j) whole(row + i, column + j) = slice(i, j);
  }
}

Operand::Operand(const Setting& setting, const Array& values) {
  const std::int64_t stride = values.columns + setting.padding;
  const std::int64_t elements = values.rows * stride + 2 * kMargin;
  bytes_.resize(static_cast<std::size_t>(elements) * SizeOf(setting.dtype));
  matrix_ = {bytes_.data(), setting.dtype, values.rows, values.columns, stride};
  matrix_.data = matrix_.Offset(kMargin);
  DispatchDtype(setting.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* const memory = reinterpret_cast<T*>(bytes_.data());
    std::fill(memory, memory + elements, static_cast<T>(kMark));
    for (std::int64_t i = 0; i < values.rows; ++i) {
      for (std::int64_t j = 0; j < values.columns; ++j) {
        memory[kMargin + i * stride + j] = static_cast<T>(values(i, j));
      }
    }
  });
}

double Operand::Element(std::int64_t index) const {
  return DispatchDtype(matrix_.dtype, [&](auto zero) {
    using T = decltype(zero);
    return static_cast<double>(reinterpret_cast<const T*>(bytes_.data())[index]);
  });
}

Array Operand::Values() const {
  Array values(matrix_.rows, matrix_.columns);
  bool marked = true;
  for (std::int64_t k = 0; k < kMargin; ++k) {
    marked &= Element(k) == kMark;
    marked &= Element(kMargin + matrix_.rows * matrix_.stride + k) == kMark;
  }
  for (std::int64_t i = 0; i < matrix_.rows; ++i) {
    for (std::int64_t j = 0; j < matrix_.stride; ++j) {
      const double element = Element(kMargin + i * matrix_.stride + j);
      if (j < matrix_.columns) {
        values(i, j) = element;
      } else {
        marked &= element == kMark;
      }
    }
  }
  EXPECT_TRUE(marked) << "memory outside of the matrix was written";
  return values;
}

void ExpectClose(const Array& got, const Array& want, double tolerance, const std::string& what,
                 double floor) {
  ASSERT_EQ(got.rows, want.rows) << what;
  ASSERT_EQ(got.columns, want.columns) << what;
  double largest = floor, worst = -1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < want.values.size(); ++i) {
    largest = std::max(largest, std::abs(want.values[i]));
    const double difference = std::abs(got.values[i] - want.values[i]);
    if (!(difference <= worst)) {  // also for NaN
      worst = difference;
      at = i;
      if (std::isnan(difference)) break;
    }
  }
  if (want.values.empty() || worst <= tolerance * largest) return;
  const auto columns = static_cast<std::size_t>(want.columns);
  ADD_FAILURE() << what << ": element (" << at / columns << ", " << at % columns << ") is "
                << got.values[at] << " instead of " << want.values[at] << ", largest " << largest
                << ", allowed " << tolerance * largest;
}

}  // namespace trireme::test
