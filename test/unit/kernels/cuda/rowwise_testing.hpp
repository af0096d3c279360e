// Common parts of the tests of row-wise and element-wise kernels on a GPU: operands of any type and
// layout, the CPU's result in fp64 on the same numbers, and their comparison.
#ifndef TRIREME_TEST_UNIT_KERNELS_CUDA_ROWWISE_TESTING_HPP_
#define TRIREME_TEST_UNIT_KERNELS_CUDA_ROWWISE_TESTING_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "gpu_testing.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {

// Layout of a matrix in memory: rows one after the other; with gaps, on boundaries of 16 bytes;
// with gaps, the first row alone on one; with gaps and on no boundary.
enum class RowLayout { kDense, kGaps, kOddGaps, kOdd };

struct RowwiseSetting {
  Dtype dtype = Dtype::kFloat32;
  RowLayout layout = RowLayout::kDense;
};
std::vector<RowwiseSetting> RowwiseSettings();
std::string NameOfSetting(const testing::TestParamInfo<RowwiseSetting>& info);

// A dense matrix of doubles on the host: the reference's operand.
struct HostRows {
  HostRows() = default;
  HostRows(std::int64_t row_count, std::int64_t column_count, double value = 0);
  // Multiples of 1/64 in [-2, 2] but 0, which every type holds exactly; other ones for each seed.
  static HostRows Random(std::int64_t rows, std::int64_t columns, unsigned seed);

  kernels::Matrix View() { return {values.data(), Dtype::kFloat64, rows, columns, columns}; }

  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;
};

// Distance allowed of a result from fp64's: `rounding` of the element itself, and `noise` of the
// largest one. In bf16 a result is rounded once at the end, and where a kernel's `steps` > 1
// earlier too.
struct RowwiseTolerance {
  double rounding = 0, noise = 0;
};
// fp32 and fp64: `terms` is how many numbers are added up.
RowwiseTolerance ToleranceFor(Dtype dtype, std::int64_t terms = 1, int steps = 1);

// `floor`: the least that counts as the largest element, for terms that cancel.
void ExpectRows(const std::vector<double>& got, const HostRows& want,
                const RowwiseTolerance& tolerance, const std::string& what, double floor = 0);

class RowwiseTest : public GpuTest, public testing::WithParamInterface<RowwiseSetting> {
 protected:
  Dtype Type() const { return GetParam().dtype; }
  // Of the operands' type, or of the sums'; a copy of `host` in the layout of the setting.
  GpuMatrix On(const HostRows& host) const { return Place(host, Type()); }
  GpuMatrix SumsOn(const HostRows& host) const { return Place(host, SumTypeOf(Type())); }
  GpuMatrix DenseSumsOn(const HostRows& host) const {
    return {Stream(), SumTypeOf(Type()), host.rows, host.columns, host.values};
  }
  RowwiseTolerance Tolerance(std::int64_t terms = 1, int steps = 1) const {
    return ToleranceFor(Type(), terms, steps);
  }
  // Stream of the CPU.
  device::Stream Cpu() const { return {}; }

 private:
  GpuMatrix Place(const HostRows& host, Dtype dtype) const;
};

// An active dropout and its ordinals on both sides. A slice of the rows and features, of positions
// that a context rank holds.
class RowwiseDropout {
 public:
  RowwiseDropout(const device::Stream& stream, double probability, std::int64_t length,
                 std::int64_t first_row = 0, std::int64_t first_feature = 0);
  const kernels::Dropout& OnHost() const { return host_; }
  const kernels::Dropout& OnCard() const { return card_; }

 private:
  std::vector<std::uint64_t> ordinals_;
  OnGpu copy_;
  kernels::Dropout host_, card_;
};

// Rows and columns: odd ones, whole vectors, more than a block has threads.
struct RowwiseSize {
  std::int64_t rows, columns;
};
std::vector<RowwiseSize> RowwiseSizes();
std::string Describe(const RowwiseSize& size);

}  // namespace trireme::test

#endif  // TRIREME_TEST_UNIT_KERNELS_CUDA_ROWWISE_TESTING_HPP_
