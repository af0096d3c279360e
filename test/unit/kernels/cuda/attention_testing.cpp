// Operands of the tests of attention, their results on the CPU, and comparison.
#include "attention_testing.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/backends.hpp"
#include "kernels/cuda/attention.hpp"

namespace trireme::test {

namespace {

// Multiples of 1/32 of `scale`, which even bf16 holds exactly where scale is a power of two.
Values Random(std::int64_t count, std::uint32_t seed, double scale) {
  std::mt19937 engine(seed);
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = scale * (static_cast<double>(engine() % 65) - 32) / 32;
  return values;
}

kernels::Matrix AttentionTestingDoubles(Values& values, std::int64_t columns) {
  const auto size = static_cast<std::int64_t>(values.size());
  return {values.data(), Dtype::kFloat64, size / columns, columns, columns};
}

}  // namespace

AttentionTolerance ToleranceOf(Dtype dtype) {
  if (dtype == Dtype::kFloat64) return {1e-13, 1e-13, 1e-12};
  if (dtype == Dtype::kFloat32) return {4e-6, 1e-6, 1e-5};
  return {4e-3, 1e-6, 1.5e-2};
}

AttentionProblem::AttentionProblem(const kernels::AttentionShape& shape_of_whole,
                                   double probability, double scale)
    : shape(shape_of_whole),
      dropout_probability(probability),
      qkv(Random(Rows() * shape.Width(), 1, scale)),
      dout(Random(Rows() * Queries(), 2, 1)) {
  for (std::int64_t i = 0; i < shape.sequences; ++i) {
    ordinals.push_back((static_cast<std::uint64_t>(i) << 33) + 7 - static_cast<std::uint64_t>(i));
  }
}

kernels::Dropout AttentionProblem::DropoutWith(const std::uint64_t* sequence_ordinals) const {
  return {dropout_probability, 77,          Purpose::kAttentionDropout, 2, 0,
          sequence_ordinals,   shape.length};
}

AttentionResults AttentionProblem::OnCpu() const {
  Values x = qkv, dy = dout;
  AttentionResults results = {NoNumbers(Rows() * Queries()), NoNumbers(Rows() * shape.heads),
                              NoNumbers(Rows() * shape.Width())};
  const device::Stream stream;
  kernels::AttentionShape on_host = shape;
  on_host.begins = DataOf(begins);
  on_host.key_lengths = DataOf(key_lengths);
  Values scratch(static_cast<std::size_t>(kernels::AttentionScratch(shape, stream.threads)));
  const kernels::Matrix out = AttentionTestingDoubles(results.out, Queries());
  const kernels::Matrix lse = AttentionTestingDoubles(results.lse, shape.heads);
  const kernels::Matrix memory = {scratch.data(), Dtype::kFloat64, 1,
                                  static_cast<std::int64_t>(scratch.size()),
                                  static_cast<std::int64_t>(scratch.size())};
  const kernels::Dropout dropout = DropoutWith(ordinals.data());
  kernels::cpu::AttentionForward(stream, on_host, AttentionTestingDoubles(x, shape.Width()),
                                 dropout, out, lse, memory);
  kernels::cpu::AttentionBackward(stream, on_host, AttentionTestingDoubles(x, shape.Width()),
                                  dropout, out, AttentionTestingDoubles(dy, Queries()), lse,
                                  AttentionTestingDoubles(results.dqkv, shape.Width()), memory);
  return results;
}

std::string Describe(const AttentionProblem& problem, Dtype dtype) {
  const kernels::AttentionShape& s = problem.shape;
  return std::string(NameOf(dtype)) + ", " + std::to_string(s.sequences) + " x " +
         std::to_string(s.length) + ", heads " + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " x " + std::to_string(s.head_dim) + ", dropout " +
         std::to_string(problem.dropout_probability) + (s.causal ? " " : ", not causal ");
}

AttentionRun RunOwnAttention(const device::Stream& stream, const AttentionProblem& p, Dtype dtype,
                             Layout layout) {
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
  kernels::cuda::OwnAttentionForward(stream, s, qkv->View(), dropout, out->View(), lse->View(),
                                     scratch.View());
  kernels::cuda::OwnAttentionBackward(stream, s, qkv->View(), dropout, out->View(), dout->View(),
                                      lse->View(), dqkv->View(), scratch.View());
  AttentionRun run = {{out->Values(), lse->Values(), dqkv->Values()}, {}};
  for (const GpuMatrix* m : {out.get(), lse.get(), dqkv.get()}) {
    EXPECT_TRUE(m->GapsUntouched()) << Describe(p, dtype);
    const auto bits = m->Bits();
    run.bits.insert(run.bits.end(), bits.begin(), bits.end());
  }
  return run;
}

Values NoNumbers(std::int64_t count) {
  return Values(static_cast<std::size_t>(count), std::numeric_limits<double>::quiet_NaN());
}

std::unique_ptr<GpuMatrix> OnGpuAs(const device::Stream& stream, Dtype dtype, Layout layout,
                                   std::int64_t columns, const Values& values) {
  const auto rows = static_cast<std::int64_t>(values.size()) / columns;
  if (layout == Layout::kOdd) {
    return std::make_unique<GpuMatrix>(stream, dtype, rows, columns, values, columns + 3, 1);
  }
  // Room behind each row, in whole vectors of the narrowest type.
  const std::int64_t stride = CeilDivide(columns, 8) * 8 + 8;
  return std::make_unique<GpuMatrix>(stream, dtype, rows, columns, values, stride);
}

Values ColumnsOf(const Values& values, std::int64_t columns, std::int64_t begin, std::int64_t end) {
  Values part;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i) % columns;
    if (column >= begin && column < end) part.push_back(values[i]);
  }
  return part;
}

void ExpectNear(const Values& got, const Values& want, double tolerance, const std::string& what,
                double floor) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = floor, difference = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    const double d = std::abs(got[i] - want[i]);
    if (!(d <= difference)) difference = d;  // NaN stays
  }
  EXPECT_LE(difference, tolerance * largest) << what << " (largest " << largest << ")";
}

void ExpectNear(const AttentionProblem& problem, const AttentionResults& got,
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

Cut RingCut(std::int64_t length, int ranks) {
  Cut cut;
  for (int rank = 0; rank < ranks; ++rank) cut.push_back(PositionsOf(length, rank, ranks));
  return cut;
}

// The rows of `whole`, a matrix of `columns`, that are at `at` of their sequences.
Values RowsAt(const Values& whole, std::int64_t columns, const kernels::AttentionShape& shape,
              const Positions& at) {
  Values part;
  for (std::int64_t i = 0; i < shape.sequences * at.Count(); ++i) {
    const std::int64_t row = i / at.Count() * shape.length + at.At(i % at.Count());
    part.insert(part.end(), whole.begin() + row * columns, whole.begin() + (row + 1) * columns);
  }
  return part;
}
// Adds `part`, of `count` columns, to the columns from `first` on.
void AddRowsAt(const Values& part, std::int64_t count, const kernels::AttentionShape& shape,
               const Positions& at, std::int64_t first, std::int64_t columns, Values& whole) {
  for (std::int64_t i = 0; i < shape.sequences * at.Count(); ++i) {
    const std::int64_t row = i / at.Count() * shape.length + at.At(i % at.Count());
    for (std::int64_t j = 0; j < count; ++j) {
      whole[static_cast<std::size_t>(row * columns + first + j)] +=
          part[static_cast<std::size_t>(i * count + j)];
    }
  }
}

}  // namespace trireme::test
