// Attention by blocks on a GPU, for any cut of sequences, against attention to whole sequences on
// the CPU in fp64.
#include <algorithm>
#include <cmath>

#include "attention_testing.hpp"
#include "kernels/backends.hpp"
#include "kernels/cuda/attention.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;
using kernels::KeyValueBlock;

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
        kernels::cuda::AttentionPartForward(Stream(), shape, {task, task + step}, x->View(), block,
                                            dropout, y->View(), lse->View(), there);
      }
    });
    kernels::cuda::AttentionPartStartBackward(Stream(), shape, dx->View(), scratch->View());
    const kernels::Matrix dqueries = dx->View().Columns(0, queries);
    for_blocks(dqueries, [&](const KeyValueBlock& block, const kernels::Matrix& there) {
      const auto gradient = Fresh(way.layout, Type(), block.data.rows, keys);
      for (std::int64_t task = 0; task < all.end; task += step) {
        kernels::cuda::AttentionPartBackward(Stream(), shape, {task, task + step}, x->View(), block,
                                             dropout, y->View(), dy->View(), lse->View(),
                                             dx->View(), gradient->View(), there);
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

}  // namespace
}  // namespace trireme::test
