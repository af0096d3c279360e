// Common parts of the tests of row-wise and element-wise kernels on a GPU: operands of any type and
// layout, the CPU's result in fp64 on the same numbers, and their comparison.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
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
// that a context rank holds. row_probability: of whole rows, too; by_word: of those with one word.
class RowwiseDropout {
 public:
  RowwiseDropout(const device::Stream& stream, double probability, std::int64_t length,
                 std::int64_t first_row = 0, std::int64_t first_feature = 0,
                 double row_probability = 0, bool by_word = false);
  const kernels::Dropout& OnHost() const { return host_; }
  const kernels::Dropout& OnCard() const { return card_; }

 private:
  // For 512 rows.
  static std::vector<std::int32_t> SomeWords() {
    std::vector<std::int32_t> words;
    for (std::int32_t row = 0; row < 512; ++row) words.push_back(row * row % 11);
    return words;
  }
  std::vector<std::uint64_t> ordinals_;
  std::vector<std::int32_t> words_;
  OnGpu copy_, words_copy_;
  kernels::Dropout host_, card_;
};

// Rows and columns: odd ones, whole vectors, more than a block has threads.
struct RowwiseSize {
  std::int64_t rows, columns;
};
std::vector<RowwiseSize> RowwiseSizes();
std::string Describe(const RowwiseSize& size);

inline std::vector<RowwiseSetting> RowwiseSettings() {
  std::vector<RowwiseSetting> settings;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
    for (const RowLayout layout :
         {RowLayout::kDense, RowLayout::kGaps, RowLayout::kOddGaps, RowLayout::kOdd}) {
      settings.push_back({dtype, layout});
    }
  }
  return settings;
}

inline std::string NameOfSetting(const testing::TestParamInfo<RowwiseSetting>& info) {
  constexpr const char* kLayouts[] = {"_dense", "_gaps", "_odd_gaps", "_odd"};
  return std::string(NameOf(info.param.dtype)) + kLayouts[static_cast<int>(info.param.layout)];
}

inline HostRows::HostRows(std::int64_t row_count, std::int64_t column_count, double value)
    : rows(row_count),
      columns(column_count),
      values(static_cast<std::size_t>(row_count * column_count), value) {}

inline HostRows HostRows::Random(std::int64_t rows, std::int64_t columns, unsigned seed) {
  constexpr int kMost = 128;
  std::mt19937_64 engine(seed);
  HostRows random(rows, columns);
  for (double& value : random.values) {
    const int number = static_cast<int>(engine() % kMost) + 1;
    value = (engine() & 1) != 0 ? number / 64.0 : -number / 64.0;
  }
  return random;
}

inline RowwiseTolerance ToleranceFor(Dtype dtype, std::int64_t terms, int steps) {
  const double growth = 4 + std::sqrt(static_cast<double>(terms));
  if (dtype == Dtype::kFloat64) return {1e-14, 1e-15 * growth};
  if (dtype == Dtype::kFloat32) return {4e-7, 1e-7 * growth};
  constexpr double kHalfUnit = 1.0 / 256;  // of 8 bits
  if (steps == 1) return {1.01 * kHalfUnit, 2e-7 * growth};
  return {steps * kHalfUnit, steps * kHalfUnit};
}

inline void ExpectRows(const std::vector<double>& got, const HostRows& want,
                       const RowwiseTolerance& tolerance, const std::string& what, double floor) {
  ASSERT_EQ(got.size(), want.values.size()) << what;
  double largest = floor;
  for (const double value : want.values) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double allowed =
        tolerance.rounding * std::abs(want.values[i]) + tolerance.noise * largest;
    const double difference = std::abs(got[i] - want.values[i]);
    if (difference <= allowed) continue;  // never with NaN
    const auto columns = static_cast<std::size_t>(want.columns);
    ADD_FAILURE() << what << ": element (" << i / columns << ", " << i % columns << ") is "
                  << got[i] << " instead of " << want.values[i] << ", largest " << largest
                  << ", allowed " << allowed;
    return;
  }
}

inline GpuMatrix RowwiseTest::Place(const HostRows& host, Dtype dtype) const {
  constexpr std::int64_t kBoundary = 16;  // elements
  std::int64_t stride = host.columns, offset = 0;
  switch (GetParam().layout) {
    case RowLayout::kDense:
      break;
    case RowLayout::kGaps:
      stride = (host.columns / kBoundary + 2) * kBoundary;
      offset = kBoundary;
      break;
    case RowLayout::kOddGaps:
      stride += 5;
      break;
    case RowLayout::kOdd:
      stride += 5;
      offset = 3;
      break;
  }
  return {Stream(), dtype, host.rows, host.columns, host.values, stride, offset};
}

inline RowwiseDropout::RowwiseDropout(const device::Stream& stream, double probability,
                                      std::int64_t length, std::int64_t first_row,
                                      std::int64_t first_feature, double row_probability,
                                      bool by_word)
    : ordinals_({7, 3, (std::uint64_t{9} << 32) + 3, 1000000007, 0, ~std::uint64_t{0}, 41, 42}),
      words_(SomeWords()),
      copy_(stream, ordinals_),
      words_copy_(stream, words_) {
  host_ = {probability, 1234,      Purpose::kFfnDropout, 3, 1, ordinals_.data(),
           length,      first_row, first_feature};
  // As the second of three context ranks has them.
  host_.positions = PositionsOf(3 * length, 1, 3);
  host_.row_probability = row_probability;
  card_ = host_;
  card_.ordinals = copy_.As<std::uint64_t>();
  if (!by_word) return;
  host_.words = words_.data();
  card_.words = words_copy_.As<std::int32_t>();
}

inline std::vector<RowwiseSize> RowwiseSizes() {
  return {{1, 1},  {3, 3},    {31, 33},  {33, 31},  {2, 127},  {127, 8},
          {5, 64}, {17, 128}, {3, 1000}, {2, 1001}, {1, 2304}, {259, 16}};
}

inline std::string Describe(const RowwiseSize& size) {
  return "[" + std::to_string(size.rows) + ", " + std::to_string(size.columns) + "]";
}

}  // namespace trireme::test
