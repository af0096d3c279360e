// Common parts of the kernel tests: operands of either type with guarded padding, and comparison
// with the plain fp64 reference.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::test {

// Settings of a kernel's call: its results may not depend on any of these beyond rounding.
struct Setting {
  Dtype dtype = Dtype::kFloat32;
  int threads = 1;
  std::int64_t padding = 0;  // elements between rows

  device::Stream Stream() const { return {.threads = threads}; }
  double Tolerance(double fp32, double fp64) const {
    return dtype == Dtype::kFloat32 ? fp32 : fp64;
  }
};
std::vector<Setting> AllSettings();
std::string NameOf(const testing::TestParamInfo<Setting>& info);

class KernelTest : public testing::TestWithParam<Setting> {
 protected:
  device::Stream Stream() const { return GetParam().Stream(); }
  double Tolerance(double fp32, double fp64) const { return GetParam().Tolerance(fp32, fp64); }
};

// Uniform in [-scale, scale], every value exact in fp32, so that both types start from equal
// operands.
Array Random(std::int64_t rows, std::int64_t columns, std::uint32_t seed, double scale = 1);
// To be overwritten: a kernel that reads it gives NaN.
Array Poison(std::int64_t rows, std::int64_t columns);

// Rows [rows.begin, rows.end) and columns [columns.begin, columns.end) of `whole`.
Array SliceOf(const Array& whole, const Part& rows, const Part& columns);
// Puts a slice back where it was cut out.
void PlaceSlice(const Array& slice, std::int64_t row, std::int64_t column, Array& whole);

// A matrix in the memory layout of a setting. The padding and the memory around hold a mark that no
// kernel may touch.
class Operand {
 public:
  Operand(const Setting& setting, const Array& values);
  Operand(Operand&&) = default;  // the view stays valid: a moved vector keeps its memory
  Operand(const Operand&) = delete;

  const kernels::Matrix& View() const { return matrix_; }
  Array Values() const;  // also checks the marks
  bool SameBits(const Operand& other) const { return bytes_ == other.bytes_; }

 private:
  double Element(std::int64_t index) const;
  std::vector<std::byte> bytes_;
  kernels::Matrix matrix_;
};
// Setting without padding: statistics and scratch are dense by contract.
inline Setting Dense(Setting setting) {
  setting.padding = 0;
  return setting;
}
// Stands for "none".
inline kernels::Matrix None() { return {}; }

// Largest difference at most tolerance * max(largest |want|, floor); NaN and infinity never pass. A
// floor stands for terms that cancel.
void ExpectClose(const Array& got, const Array& want, double tolerance, const std::string& what,
                 double floor = 0);

// The reference's view of a kernel's dropout.
inline DropoutSite SiteOf(const kernels::Dropout& dropout) {
  return {dropout.probability, MakeKey(dropout.seed, dropout.purpose, dropout.layer, dropout.site)};
}
// An active dropout over sequences of `length`; ordinals use both halves of their 64 bits.
inline const std::vector<std::uint64_t> kOrdinals = {
    7, 3, (std::uint64_t{9} << 32) + 3, 1000000007, 0, ~std::uint64_t{0}, 41, 42};
inline kernels::Dropout MakeDropout(double probability, std::int64_t length) {
  return {probability, 1234, Purpose::kFfnDropout, 3, 1, kOrdinals.data(), length};
}

}  // namespace trireme::test
