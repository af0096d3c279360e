// Common parts of the tests of products on a GPU: a stream with libraries, operands on both sides,
// and bounds of rounding.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu_testing.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::test {

using Values = std::vector<double>;

// As the type stores them.
inline Values Rounded(Values values, Dtype dtype) {
  for (double& value : values) {
    if (dtype != Dtype::kFloat64) value = static_cast<double>(static_cast<float>(value));
    if (dtype == Dtype::kBfloat16) {
      value = static_cast<double>(FromBfloat16(RoundToBfloat16(static_cast<float>(value))));
    }
  }
  return values;
}

// Uniform in [-scale, scale], as the type stores them.
inline Values Random(std::int64_t count, std::uint32_t seed, Dtype dtype, double scale = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-scale, scale);
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = uniform(generator);
  return Rounded(std::move(values), dtype);
}

// An fp64 matrix on the host, for the CPU's kernels as the reference.
class HostMatrix {
 public:
  HostMatrix(std::int64_t rows, std::int64_t columns, Values values)
      : rows_(rows), columns_(columns), values_(std::move(values)) {}
  HostMatrix(std::int64_t rows, std::int64_t columns)
      : HostMatrix(rows, columns, Values(static_cast<std::size_t>(rows * columns))) {}
  kernels::Matrix View() { return {values_.data(), Dtype::kFloat64, rows_, columns_, columns_}; }
  const Values& Numbers() const { return values_; }

 private:
  std::int64_t rows_, columns_;
  Values values_;
};

// Half a unit in the last place of 1.
inline double UnitOf(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? 1e-16 : dtype == Dtype::kFloat32 ? 6e-8 : 4e-3;
}

// |actual - expected| <= allowed(element), for all of them; says where it is worst.
template <typename Allowed>
void ExpectWithin(const Values& actual, const Values& expected, const Allowed& allowed) {
  ASSERT_EQ(actual.size(), expected.size());
  std::size_t worst = 0;
  double excess = -1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::fabs(actual[i] - expected[i]);
    const double beyond = std::isfinite(error) ? error - allowed(i) : 1e300;
    if (beyond > excess) {
      excess = beyond;
      worst = i;
    }
  }
  if (actual.empty()) return;
  EXPECT_LE(excess, 0) << "element " << worst << ": " << actual[worst] << " instead of "
                       << expected[worst];
}

// |actual - expected| <= relative |expected| + absolute.
inline void ExpectClose(const Values& actual, const Values& expected, double relative,
                        double absolute) {
  ExpectWithin(actual, expected,
               [&](std::size_t i) { return relative * std::fabs(expected[i]) + absolute; });
}

inline constexpr int kTestSites = 3;

// A stream that knows its products.
class ProductsTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    Open();
  }
  // Anew, as a run begins.
  void Open() {
    libraries_ = kernels::MakeLibraries(Stream(), kTestSites);
    Stream().libraries = libraries_.get();
  }
  kernels::Libraries& Libraries() { return *libraries_; }
  bool IsEmulated() const { return Stream().gpu->name == "Emulated GPU"; }
  // Percent of the products with an epilogue that the emulated library has no algorithm for.
  static int RefusedEpilogues() {
    const char* const percent = std::getenv("TRIREME_EMULATOR_CUBLASLT_REFUSE");
    return percent == nullptr ? 0 : std::atoi(percent);
  }

 private:
  std::unique_ptr<kernels::Libraries> libraries_;
};

}  // namespace trireme::test
