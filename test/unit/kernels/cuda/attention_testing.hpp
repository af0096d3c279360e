// Common parts of the tests of attention on a GPU: a problem with operands that all types hold
// exactly, the CPU's results in fp64, and the same operands on the GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "documents.hpp"
#include "gpu_testing.hpp"
#include "kernels/backends.hpp"
#include "kernels/cuda/attention.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::test {

// A stream with libraries, of which cuDNN's plans are a part.
class AttentionOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) RenewLibraries();
  }
  // State of its own for what follows.
  void RenewLibraries() {
    libraries_ = kernels::MakeLibraries(Stream(), 0);
    Stream().libraries = libraries_.get();
  }

 private:
  std::unique_ptr<kernels::Libraries> libraries_;
};

// cuDNN of the emulator, as its words have it (test/emulator/cudnn.cpp), while this lives. A card's
// is there or not.
class EmulatedCudnn {
 public:
  explicit EmulatedCudnn(const char* words) { ::setenv("TRIREME_EMULATOR_CUDNN", words, 1); }
  ~EmulatedCudnn() { ::unsetenv("TRIREME_EMULATOR_CUDNN"); }
  EmulatedCudnn(const EmulatedCudnn&) = delete;
  EmulatedCudnn& operator=(const EmulatedCudnn&) = delete;
};

// The same with cuDNN: the emulator's, or a card's. Skipped where it is not built in.
class CudnnOnGpu : public AttentionOnGpu {
 protected:
  void SetUp() override {
    AttentionOnGpu::SetUp();
    if (!IsSkipped() && kernels::cuda::CudnnName().empty()) {
      GTEST_SKIP() << "skipped: this program was built without cuDNN";
    }
  }

 private:
  const EmulatedCudnn cudnn_{"on"};
};

using Values = std::vector<double>;  // of a dense row-major matrix

// Largest difference to fp64 on the CPU, relative to the largest element. fp64 and fp32: the order
// of sums; bf16: results and what the backward pass reads of them are rounded to 8 bits.
struct AttentionTolerance {
  double out, lse, gradient;
};
AttentionTolerance ToleranceOf(Dtype dtype);

// Layout of operands in memory: whole vectors, or one element at a time.
enum class Layout { kAligned, kOdd };

struct AttentionResults {
  Values out, lse, dqkv;  // [rows, heads head_dim], [rows, heads], [rows, Width()]
};

// Operands of attention to whole sequences.
struct AttentionProblem {
  AttentionProblem(const kernels::AttentionShape& shape_of_whole, double probability,
                   double scale = 2);

  std::int64_t Rows() const { return shape.sequences * shape.length; }
  std::int64_t Queries() const { return shape.heads * shape.head_dim; }
  kernels::Dropout DropoutWith(const std::uint64_t* sequence_ordinals) const;
  AttentionResults OnCpu() const;  // in fp64

  kernels::AttentionShape shape;
  double dropout_probability;
  std::vector<std::uint64_t> ordinals;
  std::vector<std::int32_t> begins;       // [rows] of documents; empty: none
  std::vector<std::int32_t> key_lengths;  // [sequences]; empty: no padding
  Values qkv, dout;                       // uniform, with few bits
};

std::string Describe(const AttentionProblem& problem, Dtype dtype);

struct AttentionRun {
  AttentionResults values;
  std::vector<unsigned char> bits;  // of all results
};
// Both passes by our own kernels on the GPU, into matrices of NaN. Checks besides that what lies
// between rows is left alone.
AttentionRun RunOwnAttention(const device::Stream& stream, const AttentionProblem& problem,
                             Dtype dtype, Layout layout);

Values NoNumbers(std::int64_t count);  // to be overwritten: whoever reads them gets NaN

// A matrix of `columns` on the GPU in that layout.
std::unique_ptr<GpuMatrix> OnGpuAs(const device::Stream& stream, Dtype dtype, Layout layout,
                                   std::int64_t columns, const Values& values);

// Columns [begin, end) of a matrix of `columns`.
Values ColumnsOf(const Values& values, std::int64_t columns, std::int64_t begin, std::int64_t end);

using Cut = std::vector<Positions>;  // parts of the ranks; together the sequence
Cut RingCut(std::int64_t length, int ranks);

// The rows of `whole`, a matrix of `columns`, that are at `at` of their sequences.
Values RowsAt(const Values& whole, std::int64_t columns, const kernels::AttentionShape& shape,
              const Positions& at);
// Adds `part`, of `count` columns, to the columns from `first` on.
void AddRowsAt(const Values& part, std::int64_t count, const kernels::AttentionShape& shape,
               const Positions& at, std::int64_t first, std::int64_t columns, Values& whole);

// Largest difference at most tolerance * max(largest |want|, floor); NaN never passes. A floor
// stands for terms that cancel.
void ExpectNear(const Values& got, const Values& want, double tolerance, const std::string& what,
                double floor = 0);
// All of it: queries', keys' and values' gradients each against their own largest element.
void ExpectNear(const AttentionProblem& problem, const AttentionResults& got,
                const AttentionResults& want, const AttentionTolerance& tolerance,
                const std::string& what);

// Multiples of 1/32 of `scale`, which even bf16 holds exactly where scale is a power of two.
inline Values RandomValues(std::int64_t count, std::uint32_t seed, double scale) {
  std::mt19937 engine(seed);
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = scale * (static_cast<double>(engine() % 65) - 32) / 32;
  return values;
}

inline kernels::Matrix DoublesOf(Values& values, std::int64_t columns) {
  const auto size = static_cast<std::int64_t>(values.size());
  return {values.data(), Dtype::kFloat64, size / columns, columns, columns};
}

inline AttentionTolerance ToleranceOf(Dtype dtype) {
  if (dtype == Dtype::kFloat64) return {1e-13, 1e-13, 1e-12};
  if (dtype == Dtype::kFloat32) return {4e-6, 1e-6, 1e-5};
  return {4e-3, 1e-6, 1.5e-2};
}

inline AttentionProblem::AttentionProblem(const kernels::AttentionShape& shape_of_whole,
                                          double probability, double scale)
    : shape(shape_of_whole),
      dropout_probability(probability),
      qkv(RandomValues(Rows() * shape.Width(), 1, scale)),
      dout(RandomValues(Rows() * Queries(), 2, 1)) {
  for (std::int64_t i = 0; i < shape.sequences; ++i) {
    ordinals.push_back((static_cast<std::uint64_t>(i) << 33) + 7 - static_cast<std::uint64_t>(i));
  }
}

inline kernels::Dropout AttentionProblem::DropoutWith(
    const std::uint64_t* sequence_ordinals) const {
  return {dropout_probability, 77,          Purpose::kAttentionDropout, 2, 0,
          sequence_ordinals,   shape.length};
}

inline AttentionResults AttentionProblem::OnCpu() const {
  Values x = qkv, dy = dout;
  AttentionResults results = {NoNumbers(Rows() * Queries()), NoNumbers(Rows() * shape.heads),
                              NoNumbers(Rows() * shape.Width())};
  const device::Stream stream;
  kernels::AttentionShape on_host = shape;
  on_host.begins = DataOf(begins);
  on_host.key_lengths = DataOf(key_lengths);
  Values scratch(static_cast<std::size_t>(
      kernels::AttentionScratch({.threads = stream.threads}, shape, Dtype::kFloat64, true)));
  const kernels::Matrix out = DoublesOf(results.out, Queries());
  const kernels::Matrix lse = DoublesOf(results.lse, shape.heads);
  const kernels::Matrix memory = {scratch.data(), Dtype::kFloat64, 1,
                                  static_cast<std::int64_t>(scratch.size()),
                                  static_cast<std::int64_t>(scratch.size())};
  const kernels::Dropout dropout = DropoutWith(ordinals.data());
  using Cpu = kernels::AttentionBy<kernels::cpu::Attend>;
  Cpu::Forward(stream, on_host, DoublesOf(x, shape.Width()), dropout, out, lse, memory);
  Cpu::Backward(stream, on_host, DoublesOf(x, shape.Width()), dropout, out,
                DoublesOf(dy, Queries()), lse, DoublesOf(results.dqkv, shape.Width()), memory);
  return results;
}

inline std::string Describe(const AttentionProblem& problem, Dtype dtype) {
  const kernels::AttentionShape& s = problem.shape;
  return std::string(NameOf(dtype)) + ", " + std::to_string(s.sequences) + " x " +
         std::to_string(s.length) + ", heads " + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " x " + std::to_string(s.head_dim) + ", dropout " +
         std::to_string(problem.dropout_probability) + (s.causal ? " " : ", not causal ");
}

inline AttentionRun RunOwnAttention(const device::Stream& stream, const AttentionProblem& p,
                                    Dtype dtype, Layout layout) {
  const test::OnGpu begins(stream, p.begins), key_lengths(stream, p.key_lengths);
  kernels::AttentionShape s = p.shape;
  if (!p.begins.empty()) s.begins = begins.As<std::int32_t>();
  if (!p.key_lengths.empty()) s.key_lengths = key_lengths.As<std::int32_t>();
  const Dtype sum = SumTypeOf(dtype);
  const auto fresh = [&](Dtype type, std::int64_t columns) {
    return OnGpuAs(stream, type, layout, columns, NoNumbers(p.Rows() * columns));
  };
  const auto qkv = OnGpuAs(stream, dtype, layout, s.Width(), p.qkv);
  const auto dout = OnGpuAs(stream, dtype, layout, p.Queries(), p.dout);
  const auto out = fresh(dtype, p.Queries()), dqkv = fresh(dtype, s.Width());
  const auto lse = fresh(sum, s.heads);
  const std::int64_t elements = kernels::gpu::AttentionScratch(stream, s, Dtype::kFloat32, false);
  const GpuMatrix scratch(stream, sum, 1, elements, NoNumbers(elements));
  const test::OnGpu ordinals(stream, p.ordinals);
  const kernels::Dropout dropout = p.DropoutWith(ordinals.As<std::uint64_t>());
  using Own = kernels::AttentionBy<kernels::cuda::OwnAttention>;
  Own::Forward(stream, s, qkv->View(), dropout, out->View(), lse->View(), scratch.View());
  Own::Backward(stream, s, qkv->View(), dropout, out->View(), dout->View(), lse->View(),
                dqkv->View(), scratch.View());
  AttentionRun run = {{out->Values(), lse->Values(), dqkv->Values()}, {}};
  for (const GpuMatrix* m : {out.get(), lse.get(), dqkv.get()}) {
    EXPECT_TRUE(m->GapsUntouched()) << Describe(p, dtype);
    const auto bits = m->Bits();
    run.bits.insert(run.bits.end(), bits.begin(), bits.end());
  }
  return run;
}

inline Values NoNumbers(std::int64_t count) {
  return Values(static_cast<std::size_t>(count), std::numeric_limits<double>::quiet_NaN());
}

inline std::unique_ptr<GpuMatrix> OnGpuAs(const device::Stream& stream, Dtype dtype, Layout layout,
                                          std::int64_t columns, const Values& values) {
  const auto rows = static_cast<std::int64_t>(values.size()) / columns;
  if (layout == Layout::kOdd) {
    return std::make_unique<GpuMatrix>(stream, dtype, rows, columns, values, columns + 3, 1);
  }
  // Room behind each row, in whole vectors of the narrowest type.
  const std::int64_t stride = CeilDivide(columns, 8) * 8 + 8;
  return std::make_unique<GpuMatrix>(stream, dtype, rows, columns, values, stride);
}

inline Values ColumnsOf(const Values& values, std::int64_t columns, std::int64_t begin,
                        std::int64_t end) {
  Values part;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i) % columns;
    if (column >= begin && column < end) part.push_back(values[i]);
  }
  return part;
}

inline void ExpectNear(const Values& got, const Values& want, double tolerance,
                       const std::string& what, double floor) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = floor, difference = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    const double d = std::abs(got[i] - want[i]);
    if (!(d <= difference)) difference = d;  // NaN stays
  }
  EXPECT_LE(difference, tolerance * largest) << what << " (largest " << largest << ")";
}

inline void ExpectNear(const AttentionProblem& problem, const AttentionResults& got,
                       const AttentionResults& want, const AttentionTolerance& tolerance,
                       const std::string& what) {
  const kernels::AttentionShape& s = problem.shape;
  ExpectNear(got.out, want.out, tolerance.out, what + "out");
  ExpectNear(got.lse, want.lse, tolerance.lse, what + "lse", 1);
  const std::int64_t q = problem.Queries(), kv = s.kv_heads * s.head_dim, width = s.Width();
  // With one key, scores' gradients are rounding.
  ExpectNear(ColumnsOf(got.dqkv, width, 0, q), ColumnsOf(want.dqkv, width, 0, q),
             tolerance.gradient, what + "gradient of queries", 1);
  ExpectNear(ColumnsOf(got.dqkv, width, q, q + kv), ColumnsOf(want.dqkv, width, q, q + kv),
             tolerance.gradient, what + "gradient of keys", 1);
  ExpectNear(ColumnsOf(got.dqkv, width, q + kv, width), ColumnsOf(want.dqkv, width, q + kv, width),
             tolerance.gradient, what + "gradient of values");
}

inline Cut RingCut(std::int64_t length, int ranks) {
  Cut cut;
  for (int rank = 0; rank < ranks; ++rank) cut.push_back(PositionsOf(length, rank, ranks));
  return cut;
}

// The rows of `whole`, a matrix of `columns`, that are at `at` of their sequences.
inline Values RowsAt(const Values& whole, std::int64_t columns,
                     const kernels::AttentionShape& shape, const Positions& at) {
  Values part;
  for (std::int64_t i = 0; i < shape.sequences * at.Count(); ++i) {
    const std::int64_t row = i / at.Count() * shape.length + at.At(i % at.Count());
    part.insert(part.end(), whole.begin() + row * columns, whole.begin() + (row + 1) * columns);
  }
  return part;
}
// Adds `part`, of `count` columns, to the columns from `first` on.
inline void AddRowsAt(const Values& part, std::int64_t count, const kernels::AttentionShape& shape,
                      const Positions& at, std::int64_t first, std::int64_t columns,
                      Values& whole) {
  for (std::int64_t i = 0; i < shape.sequences * at.Count(); ++i) {
    const std::int64_t row = i / at.Count() * shape.length + at.At(i % at.Count());
    for (std::int64_t j = 0; j < count; ++j) {
      whole[static_cast<std::size_t>(row * columns + first + j)] +=
          part[static_cast<std::size_t>(i * count + j)];
    }
  }
}

}  // namespace trireme::test
