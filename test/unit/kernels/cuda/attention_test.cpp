// Attention on a GPU against the CPU's: whole windows, parts, padding, tensor cores, a cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "attention_testing.hpp"
#include "kernels/backends.hpp"
#include "kernels/cuda/attention.hpp"
#include "trireme/device/gpu.hpp"
#ifdef TRIREME_EMULATED
#include "emulator/kernel.hpp"
#endif

namespace trireme::test {
namespace {

using kernels::AttentionShape;
using kernels::KeyValueBlock;

// Attention by blocks on a GPU, for any cut of sequences, against attention to whole sequences on
// the CPU in fp64.

// Gradients of keys in bf16 are rounded once a block.
constexpr double kBlocks = 2;

class CudaAttentionPartTest : public AttentionOnGpu, public testing::WithParamInterface<Dtype> {
 protected:
  Dtype Type() const { return GetParam(); }
  std::unique_ptr<GpuMatrix> Fresh(Layout layout, Dtype type, std::int64_t rows,
                                   std::int64_t columns) const {
    return OnGpuAs(Stream(), type, layout, columns, NoNumbers(rows * columns));
  }
  std::unique_ptr<GpuMatrix> Scratch(const AttentionShape& shape, const Positions& block) const {
    const std::int64_t most = std::max(block.early.Size(), block.late.Size());
    const std::int64_t elements =
        kernels::gpu::AttentionPartScratch(Stream(), shape, most, Type(), false);
    return std::make_unique<GpuMatrix>(Stream(), SumTypeOf(Type()), 1, elements,
                                       NoNumbers(elements));
  }

  // Choices of a pass.
  struct Way {
    Layout layout = Layout::kAligned;
    bool task_by_task = false;
    // In bf16, between blocks: the sum is rounded to what is stored; what is stored is cleared.
    bool rounds = false, clears = false;
  };

  // Adds to `sum` the results of rank `rank` of `cut` from its queries and all blocks, its own
  // first.
  void AddRank(const AttentionProblem& p, const Cut& cut, std::size_t rank, const Way& way,
               AttentionResults& sum) const {
    AttentionShape shape = p.shape;
    shape.length = cut[rank].Count();
    shape.positions = cut[rank];
    const test::OnGpu begins(
        Stream(), p.begins.empty() ? p.begins : BeginsAt(p.begins, p.shape.length, cut[rank]));
    if (!p.begins.empty()) shape.begins = begins.As<std::int32_t>();
    const std::int64_t rows = shape.sequences * shape.length, queries = p.Queries();
    const std::int64_t width = shape.Width(), keys = width - queries;
    const auto on_gpu = [&](const Values& values, std::int64_t columns) {
      return OnGpuAs(Stream(), Type(), way.layout, columns, values);
    };
    const auto x = on_gpu(RowsAt(p.qkv, width, p.shape, cut[rank]), width);
    const auto dy = on_gpu(RowsAt(p.dout, queries, p.shape, cut[rank]), queries);
    const auto y = Fresh(way.layout, Type(), rows, queries);
    const auto lse = Fresh(way.layout, SumTypeOf(Type()), rows, shape.heads);
    const auto dx = Fresh(way.layout, Type(), rows, width);
    const test::OnGpu ordinals(Stream(), p.ordinals);
    const kernels::Dropout dropout = p.DropoutWith(ordinals.As<std::uint64_t>());
    const Part all = {0, kernels::AttentionPartTasks(shape)};
    const std::int64_t step = way.task_by_task ? 1 : std::max<std::int64_t>(all.end, 1);
    const std::unique_ptr<GpuMatrix> scratch = Scratch(shape, cut[rank]);
    // Calls body(block, scratch) for all blocks, which add to `stored`.
    const auto for_blocks = [&](const kernels::Matrix& stored, const auto& body) {
      for (std::size_t i = 0; i < cut.size(); ++i) {
        const Positions& at = cut[(rank + cut.size() - i) % cut.size()];
        const Values block = ColumnsOf(RowsAt(p.qkv, width, p.shape, at), width, queries, width);
        const auto data = on_gpu(block, keys);
        if (way.rounds && i > 0) {
          kernels::Copy(Stream(), stored, kernels::cuda::ExactSum(shape, scratch->View()));
        }
        if (way.clears && i > 0) kernels::Clear(Stream(), stored);
        body(KeyValueBlock{at, data->View()}, scratch->View());
        Synchronise();
      }
    };
    kernels::cuda::AttentionPartStart(Stream(), y->View(), lse->View());
    for_blocks(y->View(), [&](const KeyValueBlock& block, const kernels::Matrix& there) {
      for (std::int64_t task = 0; task < all.end; task += step) {
        kernels::AttentionBy<kernels::cuda::Attend>::PartForward(
            Stream(), shape, {task, task + step}, x->View(), block, dropout, y->View(), lse->View(),
            there);
      }
    });
    kernels::cuda::AttentionPartStartBackward(Stream(), shape, dx->View(), scratch->View());
    const kernels::Matrix dqueries = dx->View().Columns(0, queries);
    for_blocks(dqueries, [&](const KeyValueBlock& block, const kernels::Matrix& there) {
      const auto gradient = Fresh(way.layout, Type(), block.data.rows, keys);
      for (std::int64_t task = 0; task < all.end; task += step) {
        kernels::AttentionBy<kernels::cuda::Attend>::PartBackward(
            Stream(), shape, {task, task + step}, x->View(), block, dropout, y->View(), dy->View(),
            lse->View(), dx->View(), gradient->View(), there);
      }
      AddRowsAt(gradient->Values(), keys, p.shape, block.positions, queries, width, sum.dqkv);
      EXPECT_TRUE(gradient->GapsUntouched());
    });
    AddRowsAt(y->Values(), queries, p.shape, cut[rank], 0, queries, sum.out);
    AddRowsAt(lse->Values(), shape.heads, p.shape, cut[rank], 0, shape.heads, sum.lse);
    const Values dx_values = dx->Values();
    AddRowsAt(ColumnsOf(dx_values, width, 0, queries), queries, p.shape, cut[rank], 0, width,
              sum.dqkv);
    for (const double value : ColumnsOf(dx_values, width, queries, width)) {
      ASSERT_TRUE(std::isnan(value)) << "keys' and values' columns of dqkv are not written";
    }
    EXPECT_TRUE(y->GapsUntouched() && lse->GapsUntouched() && dx->GapsUntouched());
  }

  AttentionResults InParts(const AttentionProblem& p, const Cut& cut, const Way& way) const {
    const auto zeros = [&](std::int64_t columns) {
      return Values(static_cast<std::size_t>(p.Rows() * columns));
    };
    AttentionResults sum = {zeros(p.Queries()), zeros(p.shape.heads), zeros(p.shape.Width())};
    for (std::size_t rank = 0; rank < cut.size(); ++rank) AddRank(p, cut, rank, way, sum);
    return sum;
  }

  void Compare(const AttentionShape& shape, const Cut& cut, double probability, const Way& way,
               const std::vector<std::int32_t>& begins = {}) const {
    AttentionProblem problem(shape, probability);
    problem.begins = begins;
    AttentionTolerance tolerance = ToleranceOf(Type());
    tolerance.gradient *= kBlocks;
    ExpectNear(problem, InParts(problem, cut, way), problem.OnCpu(), tolerance,
               Describe(problem, Type()) + "in " + std::to_string(cut.size()) + " parts: ");
  }
};

TEST_P(CudaAttentionPartTest, BlocksOfARingMakeTheWhole) {
  for (const int ranks : {2, 3, 4}) {
    Compare({2, 13, 4, 2, 4}, RingCut(13, ranks), 0.3, {});
    Compare({1, 100, 2, 1, 32, 3}, RingCut(100, ranks), ranks == 3 ? 0.3 : 0.0, {});
  }
  Compare({1, 1, 1, 1, 8}, RingCut(1, 2), 0, {});       // some blocks are empty
  Compare({2, 150, 1, 1, 64}, RingCut(150, 1), 0, {});  // one block of two parts
}

TEST_P(CudaAttentionPartTest, Documents) {
  for (const int ranks : {1, 2, 4}) {
    for (const std::int64_t mean : {3, 30}) {
      Compare({2, 150, 2, 1, 16}, RingCut(150, ranks), ranks == 2 ? 0.3 : 0.0, {},
              RandomBegins(2, 150, mean, 5));
    }
  }
}

TEST_P(CudaAttentionPartTest, AnyCutWillDo) {
  const Cut cut = {
      {{5, 6}, {80, 145}}, {{0, 5}, {150, 150}}, {{6, 80}, {145, 150}}, {{9, 9}, {9, 9}}};
  Compare({1, 150, 2, 1, 8}, cut, 0.3, {});
  AttentionShape everything = {1, 150, 2, 1, 8};
  everything.causal = false;
  Compare(everything, cut, 0.3, {});
}

TEST_P(CudaAttentionPartTest, TaskByTask) {
  for (const Layout layout : {Layout::kAligned, Layout::kOdd}) {
    Compare({2, 40, 4, 2, 16}, RingCut(40, 2), 0.3, {layout, true});
  }
}

TEST_P(CudaAttentionPartTest, NoSequences) { Compare({0, 9, 2, 1, 3}, RingCut(9, 2), 0.2, {}); }

TEST_P(CudaAttentionPartTest, TheSameBitsTwice) {
  const AttentionProblem problem({1, 90, 2, 1, 32}, 0.2);
  const Cut cut = RingCut(90, 2);
  const AttentionResults first = InParts(problem, cut, {}), second = InParts(problem, cut, {});
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.lse, second.lse);
  EXPECT_EQ(first.dqkv, second.dqkv);
}

// Merging many blocks adds up no roundings: in bf16 too, all but a few elements, which lie between
// two numbers, are as one block gives them. Rounded after each block, most are not. (Tensor cores,
// which serve whole vectors, round weights, each block its own: there the error is that of one
// block.)
class CudaAttentionRoundedTest : public CudaAttentionPartTest {};

TEST_P(CudaAttentionRoundedTest, ManyBlocksCostNoBits) {
  const AttentionProblem problem({1, 128, 1, 1, 16}, 0);
  const Values once = InParts(problem, RingCut(128, 1), {Layout::kOdd}).out;
  const auto differences = [&](bool rounds) {
    const Values many = InParts(problem, RingCut(128, 8), {Layout::kOdd, false, rounds}).out;
    std::size_t count = 0;
    for (std::size_t i = 0; i < once.size(); ++i) count += many[i] != once[i] ? 1 : 0;
    return static_cast<double>(count) / static_cast<double>(once.size());
  };
  EXPECT_LT(differences(false), 0.01);
  EXPECT_GT(differences(true), 0.1);
}

TEST_P(CudaAttentionRoundedTest, ManyBlocksCostNoPrecision) {
  const AttentionProblem problem({1, 256, 1, 1, 64}, 0);
  const Values exact = problem.OnCpu().out;
  const auto error = [&](int ranks, bool rounds) {
    const Values got = InParts(problem, RingCut(256, ranks), {Layout::kAligned, false, rounds}).out;
    double squares = 0;
    for (std::size_t i = 0; i < got.size(); ++i) squares += std::pow(got[i] - exact[i], 2);
    return std::sqrt(squares / static_cast<double>(got.size()));
  };
  const double once = error(1, false);
  EXPECT_GT(once, 0);
  EXPECT_LT(error(8, false), 1.1 * once);
  EXPECT_GT(error(8, true), 1.2 * once);
}

// Blocks add to the sum before rounding alone: not to what is stored, whatever that is.
TEST_P(CudaAttentionRoundedTest, TheRoundedSumIsNotRead) {
  for (const Layout layout : {Layout::kAligned, Layout::kOdd}) {
    AttentionShape shape = {2, 140, 4, 2, 16};
    shape.causal = false;  // every block adds to all rows
    const AttentionProblem problem(shape, 0.2);
    const AttentionResults want = InParts(problem, RingCut(140, 3), {layout});
    const AttentionResults got = InParts(problem, RingCut(140, 3), {layout, false, false, true});
    EXPECT_EQ(got.out, want.out);
    EXPECT_EQ(got.lse, want.lse);
    EXPECT_EQ(got.dqkv, want.dqkv);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, CudaAttentionRoundedTest, testing::Values(Dtype::kBfloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });
INSTANTIATE_TEST_SUITE_P(Kernel, CudaAttentionPartTest,
                         testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

// Attention to whole sequences by our own kernels on a GPU against the CPU's in fp64, in all types.

class CudaAttentionTest : public AttentionOnGpu, public testing::WithParamInterface<Dtype> {
 protected:
  Dtype Type() const { return GetParam(); }

  AttentionRun OnGpu(const AttentionProblem& p, Layout layout) const {
    return RunOwnAttention(Stream(), p, Type(), layout);
  }

  void Compare(const AttentionShape& shape) const {
    for (const double probability : {0.0, 0.3}) {
      const AttentionProblem problem(shape, probability);
      const AttentionResults want = problem.OnCpu();
      for (const Layout layout : {Layout::kAligned, Layout::kOdd}) {
        ExpectNear(problem, OnGpu(problem, layout).values, want, ToleranceOf(Type()),
                   Describe(problem, Type()));
      }
    }
  }
};

// One tile of queries and keys, or less: the backward pass is one kernel.
TEST_P(CudaAttentionTest, ShortSequences) {
  Compare({3, 1, 1, 1, 4});
  Compare({2, 5, 4, 2, 7});
  Compare({1, 31, 6, 1, 16});
  Compare({2, 32, 3, 3, 32, 5});
  Compare({1, 32, 2, 1, 128});
  Compare({1, 9, 4, 2, 200});
}

TEST_P(CudaAttentionTest, LongSequences) {
  Compare({1, 33, 4, 2, 32, 2});
  Compare({2, 33, 1, 1, 65});
  Compare({1, 100, 2, 1, 64});
  Compare({1, 65, 1, 1, 80});
  Compare({1, 40, 1, 1, 256});
  Compare({1, 257, 1, 1, 16});
  Compare({1, 130, 2, 1, 128});
}

TEST_P(CudaAttentionTest, WithoutCausality) {
  for (const std::int64_t length : {7, 70}) {
    Compare({.sequences = 1,
             .length = length,
             .heads = 2,
             .kv_heads = 1,
             .head_dim = 16,
             .causal = false});
  }
}

TEST_P(CudaAttentionTest, AnotherDivisor) {
  for (const std::int64_t length : {7, 70}) {
    Compare({.sequences = 1,
             .length = length,
             .heads = 2,
             .kv_heads = 1,
             .head_dim = 16,
             .divisor = 7});
  }
}

// Documents shorter than a tile, at its edges, and longer.
TEST_P(CudaAttentionTest, Documents) {
  const AttentionShape shapes[] = {{2, 31, 4, 2, 7},   {2, 100, 2, 1, 32}, {1, 200, 2, 2, 64},
                                   {1, 257, 1, 1, 16}, {1, 90, 2, 1, 128}, {1, 70, 1, 1, 160}};
  for (const AttentionShape& shape : shapes) {
    for (const std::int64_t mean : {2, 24, 90}) {
      AttentionProblem problem(shape, mean == 24 ? 0.3 : 0);
      problem.begins = RandomBegins(shape.sequences, shape.length, mean, 3);
      const AttentionResults want = problem.OnCpu();
      for (const Layout layout : {Layout::kAligned, Layout::kOdd}) {
        ExpectNear(problem, OnGpu(problem, layout).values, want, ToleranceOf(Type()),
                   Describe(problem, Type()) + "documents of " + std::to_string(mean) + " ");
      }
    }
  }
}

TEST_P(CudaAttentionTest, OneDocumentAWindowIsTheSameBits) {
  AttentionProblem problem({2, 90, 2, 1, 32}, 0.2);
  const std::vector<unsigned char> plain = OnGpu(problem, Layout::kAligned).bits;
  problem.begins.assign(180, 0);
  EXPECT_EQ(OnGpu(problem, Layout::kAligned).bits, plain);
}

TEST_P(CudaAttentionTest, TheSameBitsTwice) {
  for (const std::int64_t length : {32, 90}) {
    const AttentionProblem problem({2, length, 2, 1, 64}, 0.2);
    EXPECT_EQ(OnGpu(problem, Layout::kAligned).bits, OnGpu(problem, Layout::kAligned).bits);
  }
}

TEST_P(CudaAttentionTest, NoSequences) {
  const AttentionProblem problem({0, 40, 2, 1, 8}, 0.2);
  EXPECT_TRUE(OnGpu(problem, Layout::kAligned).values.out.empty());
}

// exp(scores) would overflow: only differences to the largest may be taken.
TEST_P(CudaAttentionTest, LargeScoresStayFinite) {
  const AttentionProblem problem({1, 70, 1, 1, 8}, 0, 64);
  const AttentionResults got = OnGpu(problem, Layout::kAligned).values, want = problem.OnCpu();
  // Scores near 1e4, which fp32 knows to 1e-3, and so the weights.
  AttentionTolerance tolerance = {1e-2, 1e-6, 5e-2};
  if (Type() == Dtype::kFloat64) tolerance = {1e-11, 1e-14, 1e-10};
  // The gradients are small differences to out, of which bf16 keeps 8 bits.
  if (Type() == Dtype::kBfloat16) tolerance.gradient = 4;
  ExpectNear(problem, got, want, tolerance, Describe(problem, Type()));
}

// A key that is no number spoils those that see it, and no others.
TEST_P(CudaAttentionTest, NoNumbersAreSeen) {
  AttentionProblem problem({1, 40, 1, 1, 8}, 0);
  problem.qkv[static_cast<std::size_t>(35 * problem.shape.Width() + 8)] =
      std::numeric_limits<double>::quiet_NaN();
  const AttentionResults got = OnGpu(problem, Layout::kAligned).values;
  for (std::size_t row = 0; row < 40; ++row) {
    EXPECT_EQ(std::isnan(got.out[row * 8]), row >= 35) << row;
    EXPECT_EQ(std::isnan(got.lse[row]), row >= 35) << row;
  }
}

TEST_P(CudaAttentionTest, RefusesHeadsTooWide) {
  try {
    kernels::gpu::AttentionScratch(Stream(), {1, 4, 1, 1, 264}, Dtype::kFloat32, false);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("heads of 264 are wider than 256"), std::string::npos)
        << error.what();
  }
}

TEST_P(CudaAttentionTest, RefusesHeadsThatTheCardHasNoRoomFor) {
  device::GpuContext small = *Stream().gpu;
  small.shared_bytes = 64 << 10;
  small.name = "A small card";
  device::Stream stream = Stream();
  stream.gpu = &small;
  const AttentionShape shape{1, 4, 1, 1, 256};
  const GpuMatrix qkv(Stream(), Type(), 4, shape.Width(), {}), out(Stream(), Type(), 4, 256, {});
  const GpuMatrix sums(Stream(), SumTypeOf(Type()), 1, 64, {});
  for (const bool forward : {true, false}) {
    try {
      if (forward) {
        kernels::AttentionBy<kernels::cuda::OwnAttention>::Forward(
            stream, shape, qkv.View(), {}, out.View(), sums.View(), sums.View());
      } else {
        kernels::AttentionBy<kernels::cuda::OwnAttention>::Backward(
            stream, shape, qkv.View(), {}, out.View(), out.View(), sums.View(), qkv.View(),
            sums.View());
      }
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("heads of 256 take "), std::string::npos) << what;
      EXPECT_NE(what.find("A small card gives a block 65536"), std::string::npos) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, CudaAttentionTest,
                         testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

// Attention on a GPU to sequences with padding, and of queries to the keys of another sequence,
// against the CPU in fp64. Padded keys and values are no numbers.

// One pass over `keys` rows of keys per sequence, on the CPU or a GPU.
struct AttentionPaddingOperands {
  kernels::Matrix query, keys, out, lse, dout, dquery, dkeys, scratch;
};

kernels::Matrix AttentionPaddingDoubles(Values& values, std::int64_t columns) {
  const auto size = static_cast<std::int64_t>(values.size());
  return {values.data(), Dtype::kFloat64, size / columns, columns, columns};
}

class CudaAttentionPaddingTest : public AttentionOnGpu, public testing::WithParamInterface<Dtype> {
 protected:
  Dtype Type() const { return GetParam(); }

  // Rows of keys and values beyond their sequence's length become no numbers.
  static void Poison(Values& values, std::int64_t columns, std::int64_t first, std::int64_t rows,
                     const std::vector<std::int32_t>& lengths) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / columns;
      const bool padding = row % rows >= lengths[static_cast<std::size_t>(row / rows)];
      if (padding && static_cast<std::int64_t>(i) % columns >= first) {
        values[i] = std::numeric_limits<double>::quiet_NaN();
      }
    }
  }

  // Whole sequences.
  void Compare(const AttentionShape& whole, const std::vector<std::int32_t>& lengths,
               double probability) const {
    AttentionProblem p(whole, probability);
    p.key_lengths = lengths;
    Poison(p.qkv, whole.Width(), p.Queries(), whole.length, lengths);
    const test::OnGpu lengths_there(Stream(), lengths), ordinals(Stream(), p.ordinals);
    AttentionShape shape = whole;
    shape.key_lengths = lengths_there.As<std::int32_t>();
    for (const Layout layout : {Layout::kAligned, Layout::kOdd}) {
      const auto make = [&](std::int64_t columns, const Values& values) {
        return OnGpuAs(Stream(), Type(), layout, columns, values);
      };
      const auto qkv = make(whole.Width(), p.qkv), dout = make(p.Queries(), p.dout);
      const auto out = make(p.Queries(), NoNumbers(p.Rows() * p.Queries()));
      const auto dqkv = make(whole.Width(), NoNumbers(p.Rows() * whole.Width()));
      const auto lse = OnGpuAs(Stream(), SumTypeOf(Type()), layout, whole.heads,
                               NoNumbers(p.Rows() * whole.heads));
      const std::int64_t elements = kernels::AttentionScratch(Stream(), shape, Type(), true);
      const GpuMatrix scratch(Stream(), SumTypeOf(Type()), 1, elements, NoNumbers(elements));
      const kernels::Dropout dropout = p.DropoutWith(ordinals.As<std::uint64_t>());
      kernels::AttentionForward(Stream(), shape, qkv->View(), dropout, out->View(), lse->View(),
                                scratch.View());
      kernels::AttentionBackward(Stream(), shape, qkv->View(), dropout, out->View(), dout->View(),
                                 lse->View(), dqkv->View(), scratch.View());
      ExpectNear(p, {out->Values(), lse->Values(), dqkv->Values()}, p.OnCpu(), ToleranceOf(Type()),
                 Describe(p, Type()) + "with padding ");
    }
  }

  // shape.length queries and `keys` keys per sequence.
  void CompareOther(AttentionShape shape, std::int64_t keys,
                    const std::vector<std::int32_t>& lengths, double probability) const {
    shape.causal = false;
    shape.positions = PositionsOf(shape.length, 0, 1);
    AttentionShape of_keys = shape;
    of_keys.length = keys;
    const std::int64_t q = shape.heads * shape.head_dim, kv = 2 * shape.kv_heads * shape.head_dim;
    const std::int64_t rows = shape.sequences * shape.length;
    AttentionProblem queries(shape, probability), others(of_keys, probability);
    Values query = ColumnsOf(queries.qkv, shape.Width(), 0, q);
    Values data = ColumnsOf(others.qkv, shape.Width(), q, q + kv), dout = queries.dout;
    Poison(data, kv, 0, keys, lengths);
    const device::Stream host;
    Values out = NoNumbers(rows * q), lse = NoNumbers(rows * shape.heads), dquery = out;
    Values dkeys = NoNumbers(shape.sequences * keys * kv);
    Values memory = NoNumbers(kernels::AttentionPartScratch({.threads = host.threads}, shape, keys,
                                                            Dtype::kFloat64, true));
    shape.key_lengths = lengths.data();
    Run(host, shape, keys, queries.DropoutWith(queries.ordinals.data()),
        {AttentionPaddingDoubles(query, q), AttentionPaddingDoubles(data, kv),
         AttentionPaddingDoubles(out, q), AttentionPaddingDoubles(lse, shape.heads),
         AttentionPaddingDoubles(dout, q), AttentionPaddingDoubles(dquery, q),
         AttentionPaddingDoubles(dkeys, kv),
         AttentionPaddingDoubles(memory, static_cast<std::int64_t>(memory.size()))});
    const test::OnGpu lengths_there(Stream(), lengths), ordinals(Stream(), queries.ordinals);
    shape.key_lengths = lengths_there.As<std::int32_t>();
    const auto make = [&](std::int64_t columns, const Values& values) {
      return OnGpuAs(Stream(), Type(), Layout::kAligned, columns, values);
    };
    const auto x = make(q, query), block = make(kv, data), dy = make(q, dout);
    const auto y = make(q, NoNumbers(rows * q)), dx = make(q, NoNumbers(rows * q));
    const auto dblock = make(kv, NoNumbers(shape.sequences * keys * kv));
    const auto sums = OnGpuAs(Stream(), SumTypeOf(Type()), Layout::kAligned, shape.heads,
                              NoNumbers(rows * shape.heads));
    const std::int64_t elements =
        kernels::AttentionPartScratch(Stream(), shape, keys, Type(), false);
    const GpuMatrix scratch(Stream(), SumTypeOf(Type()), 1, elements, NoNumbers(elements));
    Run(Stream(), shape, keys, queries.DropoutWith(ordinals.As<std::uint64_t>()),
        {x->View(), block->View(), y->View(), sums->View(), dy->View(), dx->View(), dblock->View(),
         scratch.View()});
    const AttentionTolerance tolerance = ToleranceOf(Type());
    const std::string what = Describe(queries, Type()) + std::to_string(keys) + " keys ";
    ExpectNear(y->Values(), out, tolerance.out, what + "out");
    ExpectNear(dx->Values(), dquery, tolerance.gradient, what + "dquery");
    for (const auto& [begin, end] : {Part{0, kv / 2}, Part{kv / 2, kv}}) {
      ExpectNear(ColumnsOf(dblock->Values(), kv, begin, end), ColumnsOf(dkeys, kv, begin, end),
                 tolerance.gradient, what + "dkeys");
    }
  }

  static void Run(const device::Stream& stream, const AttentionShape& shape, std::int64_t keys,
                  const kernels::Dropout& dropout, const AttentionPaddingOperands& o) {
    const KeyValueBlock block = {PositionsOf(keys, 0, 1), o.keys};
    const Part all = {0, kernels::AttentionPartTasks(shape)};
    kernels::AttentionPartStart(stream, o.out, o.lse);
    kernels::AttentionPartForward(stream, shape, all, o.query, block, dropout, o.out, o.lse,
                                  o.scratch);
    kernels::AttentionPartStartBackward(stream, shape, o.dquery, o.scratch);
    kernels::AttentionPartBackward(stream, shape, all, o.query, block, dropout, o.out, o.dout,
                                   o.lse, o.dquery, o.dkeys, o.scratch);
  }
};

TEST_P(CudaAttentionPaddingTest, WholeSequences) {
  for (const bool causal : {true, false}) {
    for (const double probability : {0.0, 0.3}) {
      Compare({3, 31, 4, 2, 7, 0, causal}, {31, 0, 4}, probability);
      Compare({2, 32, 2, 1, 32, 2, causal}, {5, 32}, probability);
      Compare({3, 100, 2, 1, 64, 0, causal}, {100, 16, 65}, probability);
      Compare({2, 70, 1, 1, 160, 0, causal}, {33, 32}, probability);
      Compare({2, 257, 1, 1, 16, 0, causal}, {0, 200}, probability);
    }
  }
}

TEST_P(CudaAttentionPaddingTest, KeysOfAnotherSequence) {
  for (const double probability : {0.0, 0.3}) {
    CompareOther({3, 5, 4, 2, 7}, 31, {31, 0, 4}, probability);
    CompareOther({2, 100, 2, 1, 32}, 9, {9, 3}, probability);
    CompareOther({2, 33, 2, 1, 64}, 100, {100, 17}, probability);
    CompareOther({2, 90, 1, 1, 128}, 40, {33, 32}, probability);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, CudaAttentionPaddingTest,
                         testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

// Attention on tensor cores (bf16 in whole vectors) against the CPU's in fp64: head sizes, lengths
// at and around the edges of tiles, groups of heads, dropout, documents, padding; in the emulator
// without bank conflicts.

constexpr Dtype kAttentionMatrixType = Dtype::kBfloat16;

class MatrixAttentionTest : public AttentionOnGpu {
 protected:
  void Compare(const AttentionProblem& problem) const {
    ExpectNear(problem,
               RunOwnAttention(Stream(), problem, kAttentionMatrixType, Layout::kAligned).values,
               problem.OnCpu(), ToleranceOf(kAttentionMatrixType),
               Describe(problem, kAttentionMatrixType));
  }
};

TEST_F(MatrixAttentionTest, HeadSizes) {
  for (const std::int64_t head_dim : {8, 24, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256}) {
    for (const double probability : {0.0, 0.2}) {
      Compare(AttentionProblem({1, 97, 2, 1, head_dim}, probability));
    }
  }
}

TEST_F(MatrixAttentionTest, Lengths) {
  for (const std::int64_t length : {65, 127, 128, 129, 192, 300}) {
    Compare(AttentionProblem({2, length, 2, 1, 64}, 0.1));
    Compare(AttentionProblem({1, length, 1, 1, 128}, 0));
  }
  Compare(AttentionProblem({1, 1100, 1, 1, 32}, 0.1));
}

TEST_F(MatrixAttentionTest, AnotherDivisor) {
  AttentionShape shape = {2, 140, 2, 1, 64};
  shape.divisor = 13;
  Compare(AttentionProblem(shape, 0.1));
}

TEST_F(MatrixAttentionTest, Groups) {
  for (const std::int64_t kv_heads : {1, 2, 3, 6}) {
    Compare(AttentionProblem({2, 70, 6, kv_heads, 32, 7}, 0.3));
  }
}

TEST_F(MatrixAttentionTest, WithoutCausality) {
  for (const std::int64_t head_dim : {32, 64, 128, 256}) {
    AttentionShape shape = {2, 100, 2, 1, head_dim};
    shape.causal = false;
    Compare(AttentionProblem(shape, 0.2));
  }
}

TEST_F(MatrixAttentionTest, DocumentsAndDropout) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t mean : {3, 40, 200}) {
      AttentionProblem problem({1, 260, 2, 1, head_dim}, 0.2);
      problem.begins = RandomBegins(1, 260, mean, 9);
      Compare(problem);
    }
  }
}

TEST_F(MatrixAttentionTest, Padding) {
  for (const bool causal : {false, true}) {
    AttentionShape shape = {4, 140, 2, 2, 64};
    shape.causal = causal;
    AttentionProblem problem(shape, 0.2);
    problem.key_lengths = {140, 64, 65, 1};
    Compare(problem);
  }
}

TEST_F(MatrixAttentionTest, TheSameBitsTwice) {
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionProblem problem({2, 300, 4, 2, head_dim}, 0.1);
    EXPECT_EQ(RunOwnAttention(Stream(), problem, kAttentionMatrixType, Layout::kAligned).bits,
              RunOwnAttention(Stream(), problem, kAttentionMatrixType, Layout::kAligned).bits);
  }
}

#ifdef TRIREME_EMULATED
TEST_F(MatrixAttentionTest, LoadsWithoutBankConflicts) {
  const emulator::MatrixLoads before = emulator::CountedMatrixLoads();
  for (const std::int64_t head_dim : {32, 64, 128, 256}) {
    RunOwnAttention(Stream(), AttentionProblem({1, 150, 2, 1, head_dim}, 0.1), kAttentionMatrixType,
                    Layout::kAligned);
  }
  const emulator::MatrixLoads after = emulator::CountedMatrixLoads();
  EXPECT_GT(after.turns, before.turns);
  EXPECT_EQ(after.more, before.more);
}
#endif

// Attention to a cache of keys and values on a GPU against the CPU's in fp64, in all types: texts
// of different lengths in slots of their own, odd sizes, caches of one piece and of several.

constexpr std::int64_t kSlots = 5;
const std::vector<std::int32_t> kSlotOf = {3, 0, 4};  // of each sequence

struct Case {
  AttentionShape shape;  // length: rows of the pass that attends
  std::int64_t positions;
  std::vector<std::int32_t> firsts;  // of each sequence: positions kept before
};

kernels::Matrix KeyValuesOf(const AttentionShape& shape, const kernels::Matrix& qkv) {
  return qkv.Columns(shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim);
}

class CudaCachedAttentionTest : public AttentionOnGpu, public testing::WithParamInterface<Dtype> {
 protected:
  Dtype Type() const { return GetParam(); }

  // Keys and values of what lies before, one sequence after the other, then the rows that attend.
  struct Texts {
    explicit Texts(const Case& c) {
      for (std::int64_t i = 0; i < c.shape.sequences; ++i) {
        AttentionShape before = c.shape;
        before.sequences = 1;
        before.length = c.firsts[static_cast<std::size_t>(i)];
        kept.emplace_back(before, 0);
      }
      next = std::make_unique<AttentionProblem>(c.shape, 0);
      std::reverse(next->qkv.begin(), next->qkv.end());
    }
    std::vector<AttentionProblem> kept;
    std::unique_ptr<AttentionProblem> next;
  };

  static Values OnCpu(const Case& c, const Texts& texts) {
    const device::Stream stream;
    const std::int64_t elements =
        kernels::cpu::KeyValueElements(stream, c.shape, c.positions) * kSlots;
    Values memory(static_cast<std::size_t>(elements));
    const kernels::KeyValueCache cache{memory.data(), Dtype::kFloat64, kSlots, c.positions};
    const auto view = [&](Values& values, std::int64_t columns) {
      const auto size = static_cast<std::int64_t>(values.size());
      return kernels::Matrix{values.data(), Dtype::kFloat64, size / columns, columns, columns};
    };
    const std::int32_t start = 0;
    for (std::size_t i = 0; i < texts.kept.size(); ++i) {
      if (c.firsts[i] == 0) continue;
      Values qkv = texts.kept[i].qkv;
      kernels::cpu::KeepKeyValues(stream, texts.kept[i].shape,
                                  KeyValuesOf(c.shape, view(qkv, c.shape.Width())),
                                  {&kSlotOf[i], &start}, cache);
    }
    Values qkv = texts.next->qkv,
           out(static_cast<std::size_t>(texts.next->Rows() * texts.next->Queries()));
    const kernels::CachedRows rows{kSlotOf.data(), c.firsts.data()};
    kernels::cpu::KeepKeyValues(stream, c.shape, KeyValuesOf(c.shape, view(qkv, c.shape.Width())),
                                rows, cache);
    kernels::cpu::CachedAttention(stream, c.shape, view(qkv, c.shape.Width()), rows, cache,
                                  view(out, texts.next->Queries()));
    return out;
  }

  // Beyond what is kept the slots have older texts, here NaN, and so has the room of parts.
  Values OnGpu(const Case& c, const Texts& texts, Layout layout) const {
    const std::int64_t elements = kernels::KeyValueElements(Stream(), c.shape, c.positions);
    EXPECT_EQ(elements, kernels::gpu::KeyValueElements(Stream(), c.shape, c.positions));
    const std::int64_t row = kernels::gpu::CachedRow(c.shape.head_dim);
    EXPECT_GE(elements, 2 * c.shape.kv_heads * c.positions * row);
    const GpuMatrix memory(Stream(), Type(), kSlots, elements, NoNumbers(kSlots * elements),
                           elements, 8);
    const kernels::KeyValueCache cache{memory.View().data, Type(), kSlots, c.positions};
    const test::OnGpu slots(Stream(), kSlotOf), firsts(Stream(), c.firsts);
    const test::OnGpu start(Stream(), std::vector<std::int32_t>(1, 0));
    const std::int64_t width = c.shape.Width();
    for (std::size_t i = 0; i < texts.kept.size(); ++i) {
      if (c.firsts[i] == 0) continue;
      const auto qkv = OnGpuAs(Stream(), Type(), layout, width, texts.kept[i].qkv);
      kernels::KeepKeyValues(Stream(), texts.kept[i].shape, KeyValuesOf(c.shape, qkv->View()),
                             {slots.As<std::int32_t>() + i, start.As<std::int32_t>()}, cache);
      Synchronise();
    }
    const auto qkv = OnGpuAs(Stream(), Type(), layout, width, texts.next->qkv);
    const auto out = OnGpuAs(Stream(), Type(), layout, texts.next->Queries(),
                             NoNumbers(texts.next->Rows() * texts.next->Queries()));
    const kernels::CachedRows rows{slots.As<std::int32_t>(), firsts.As<std::int32_t>()};
    kernels::KeepKeyValues(Stream(), c.shape, KeyValuesOf(c.shape, qkv->View()), rows, cache);
    kernels::CachedAttention(Stream(), c.shape, qkv->View(), rows, cache, out->View());
    EXPECT_TRUE(out->GapsUntouched());
    EXPECT_TRUE(memory.GapsUntouched());
    ExpectOthersUntouched(c, memory);
    return out->Values();
  }

  // Slots of no sequence keep their NaN.
  void ExpectOthersUntouched(const Case& c, const GpuMatrix& memory) const {
    const Values values = memory.Values();
    const std::size_t elements = values.size() / kSlots;
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      const auto end = kSlotOf.begin() + c.shape.sequences;
      if (std::find(kSlotOf.begin(), end, slot) != end) continue;
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(slot * elements);
      EXPECT_TRUE(std::all_of(begin, begin + static_cast<std::ptrdiff_t>(elements),
                              [](double value) { return std::isnan(value); }))
          << slot;
    }
  }

  void Compare(const Case& c) const {
    const Texts texts(c);
    const Values want = OnCpu(c, texts);
    for (const Layout layout : {Layout::kAligned, Layout::kOdd}) {
      ExpectNear(OnGpu(c, texts, layout), want, ToleranceOf(Type()).out,
                 Describe(*texts.next, Type()) + std::to_string(c.positions) + " positions");
    }
  }
};

AttentionShape ShapeOf(std::int64_t sequences, std::int64_t length, std::int64_t heads,
                       std::int64_t kv_heads, std::int64_t head_dim) {
  return {.sequences = sequences,
          .length = length,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim};
}

// Caches of one piece: tiles of 64 keys, not and just filled; groups of all sizes of blocks, and
// more heads than a block has.
TEST_P(CudaCachedAttentionTest, OneTokenOfEachText) {
  Compare({ShapeOf(1, 1, 1, 1, 1), 1, {0}});
  Compare({ShapeOf(3, 1, 2, 1, 3), 12, {0, 11, 5}});
  Compare({ShapeOf(3, 1, 3, 3, 4), 65, {63, 64, 62}});
  Compare({ShapeOf(2, 1, 6, 2, 16), 131, {130, 7}});
  Compare({ShapeOf(2, 1, 18, 1, 17), 100, {40, 99}});
  Compare({ShapeOf(1, 1, 8, 2, 80), 90, {80}});
  Compare({ShapeOf(3, 1, 5, 1, 128), 70, {69, 1, 33}});
  Compare({ShapeOf(2, 1, 2, 1, 256), 70, {69, 12}});
}

// A prompt's piece behind what is kept.
TEST_P(CudaCachedAttentionTest, SeveralTokens) {
  Compare({ShapeOf(3, 3, 4, 2, 5), 72, {0, 64, 69}});
  Compare({ShapeOf(2, 17, 3, 3, 24), 90, {0, 60}});
  Compare({ShapeOf(1, 5, 4, 1, 8), 600, {590}});
  AttentionShape other = ShapeOf(2, 1, 4, 2, 16);
  other.divisor = 9;
  Compare({other, 90, {0, 80}});
}

// Texts that end in the first piece, at the edges of pieces, and in the last.
TEST_P(CudaCachedAttentionTest, CachesOfSeveralPieces) {
  const std::int64_t piece = kernels::gpu::CachedPiece(700);
  ASSERT_EQ(piece, 256);
  Compare({ShapeOf(3, 1, 2, 1, 8), 700, {255, 256, 699}});
  Compare({ShapeOf(3, 1, 3, 3, 5), 513, {512, 511, 0}});
  Compare({ShapeOf(1, 1, 10, 1, 33), 300, {299}});
  EXPECT_EQ(kernels::gpu::CachedPiece(131072), 4096);
}

TEST_P(CudaCachedAttentionTest, NoSequences) {
  const Case c{ShapeOf(0, 1, 2, 1, 8), 40, {}};
  EXPECT_TRUE(OnGpu(c, Texts(c), Layout::kAligned).empty());
}

TEST_P(CudaCachedAttentionTest, TheSameBitsTwice) {
  const Case c{ShapeOf(2, 1, 4, 2, 32), 600, {599, 300}};
  const Texts texts(c);
  EXPECT_EQ(OnGpu(c, texts, Layout::kAligned), OnGpu(c, texts, Layout::kAligned));
}

// Token by token the attention of whole sequences; then a shorter text in the same slot.
TEST_P(CudaCachedAttentionTest, TextsGrow) {
  const Case c{ShapeOf(1, 1, 4, 2, 12), 72, {0}};
  const std::int64_t elements = kernels::KeyValueElements(Stream(), c.shape, c.positions);
  const GpuMatrix memory(Stream(), Type(), 1, elements, NoNumbers(elements));
  const kernels::KeyValueCache cache{memory.View().data, Type(), 1, c.positions};
  for (const std::int64_t length : {70, 20}) {
    const AttentionProblem problem(ShapeOf(1, length, 4, 2, 12), 0);
    const auto qkv =
        OnGpuAs(Stream(), Type(), Layout::kAligned, problem.shape.Width(), problem.qkv);
    const auto out = OnGpuAs(Stream(), Type(), Layout::kAligned, problem.Queries(),
                             NoNumbers(length * problem.Queries()));
    std::vector<std::int32_t> firsts;
    for (std::int32_t i = 0; i < length; ++i) firsts.push_back(i);
    const test::OnGpu slot(Stream(), std::vector<std::int32_t>(1, 0)), at(Stream(), firsts);
    for (std::int64_t i = 0; i < length; ++i) {
      const kernels::CachedRows rows{slot.As<std::int32_t>(), at.As<std::int32_t>() + i};
      kernels::KeepKeyValues(Stream(), c.shape, KeyValuesOf(c.shape, qkv->View().Rows(i, 1)), rows,
                             cache);
      kernels::CachedAttention(Stream(), c.shape, qkv->View().Rows(i, 1), rows, cache,
                               out->View().Rows(i, 1));
    }
    ExpectNear(out->Values(), problem.OnCpu().out, ToleranceOf(Type()).out, "text");
  }
}

// Keys and values of a copy have the bits of their origin; what lies behind them stays.
TEST_P(CudaCachedAttentionTest, SlotsAreCopied) {
  const AttentionShape shape = ShapeOf(1, 30, 4, 2, 12);
  const std::int64_t positions = 600, kept = 30, row = kernels::gpu::CachedRow(12);
  const std::int64_t elements = kernels::KeyValueElements(Stream(), shape, positions);
  const GpuMatrix memory(Stream(), Type(), 3, elements, NoNumbers(3 * elements));
  const kernels::KeyValueCache cache{memory.View().data, Type(), 3, positions};
  const AttentionProblem problem(shape, 0);
  const auto qkv = OnGpuAs(Stream(), Type(), Layout::kAligned, shape.Width(), problem.qkv);
  const test::OnGpu slot(Stream(), std::vector<std::int32_t>(1, 2));
  const test::OnGpu start(Stream(), std::vector<std::int32_t>(1, 0));
  kernels::KeepKeyValues(Stream(), shape, KeyValuesOf(shape, qkv->View()),
                         {slot.As<std::int32_t>(), start.As<std::int32_t>()}, cache);
  kernels::CopyKeyValues(Stream(), shape, {2, 0, kept - 1}, cache);
  const Values values = memory.Values();
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto to = static_cast<std::size_t>(i), from = static_cast<std::size_t>(2 * elements + i);
    const bool copied = i < 4 * positions * row && i % (positions * row) < (kept - 1) * row;
    if (copied) {
      ASSERT_EQ(values[to], values[from]) << i;
    } else {
      ASSERT_TRUE(std::isnan(values[to])) << i;
    }
    ASSERT_TRUE(std::isnan(values[static_cast<std::size_t>(elements + i)])) << i;
  }
}

// exp(scores) would overflow, in each piece and between them.
TEST_P(CudaCachedAttentionTest, LargeScoresStayFinite) {
  Case c{ShapeOf(1, 1, 1, 1, 8), 600, {599}};
  Texts texts(c);
  for (double& value : texts.next->qkv) value *= 32;
  for (double& value : texts.kept.front().qkv) value *= 32;
  const double tolerance = Type() == Dtype::kFloat64 ? 1e-11 : 1e-2;
  ExpectNear(OnGpu(c, texts, Layout::kAligned), OnCpu(c, texts), tolerance, "large scores");
}

INSTANTIATE_TEST_SUITE_P(Kernel, CudaCachedAttentionTest,
                         testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace trireme::test
