// Blocks of ring attention by cuDNN, merged by our own kernels, against attention to whole
// sequences on the CPU in fp64. Calls are those of parallel::RingAttention.
#include <cmath>

#include "attention_testing.hpp"
#include "kernels/backends.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;
using kernels::KeyValueBlock;

constexpr Dtype kAttentionCudnnPartType = Dtype::kBfloat16;

// A rank's operands.
struct Rank {
  AttentionShape shape;
  std::unique_ptr<GpuMatrix> qkv, out, dout, lse, dqkv, scratch;
};

class CudnnPartTest : public CudnnOnGpu {
 protected:
  std::unique_ptr<GpuMatrix> Fresh(Dtype type, std::int64_t rows, std::int64_t columns) const {
    return std::make_unique<GpuMatrix>(Stream(), type, rows, columns, NoNumbers(rows * columns));
  }

  Rank MakeRank(const AttentionProblem& p, const Positions& at, bool dropout) const {
    Rank rank;
    AttentionShape& shape = rank.shape = p.shape;
    shape.length = at.Count(), shape.positions = at;
    const std::int64_t rows = shape.sequences * shape.length, width = shape.Width();
    const auto of = [&](const Values& whole, std::int64_t columns) {
      return std::make_unique<GpuMatrix>(Stream(), kAttentionCudnnPartType, rows, columns,
                                         RowsAt(whole, columns, p.shape, at));
    };
    rank.qkv = of(p.qkv, width), rank.dout = of(p.dout, p.Queries());
    rank.out = Fresh(kAttentionCudnnPartType, rows, p.Queries()),
    rank.dqkv = Fresh(kAttentionCudnnPartType, rows, width);
    rank.lse = Fresh(Dtype::kFloat32, rows, shape.heads);
    const std::int64_t elements = kernels::cuda::AttentionPartScratch(
        Stream(), shape, std::max(at.early.Size(), at.late.Size()), kAttentionCudnnPartType,
        dropout);
    rank.scratch =
        std::make_unique<GpuMatrix>(Stream(), Dtype::kFloat32, 1, elements, NoNumbers(elements));
    return rank;
  }

  void Forward(const Rank& r, const KeyValueBlock& block, const Part& tasks) const {
    kernels::cuda::AttentionPartForward(Stream(), r.shape, tasks, r.qkv->View(), block, {},
                                        r.out->View(), r.lse->View(), r.scratch->View());
  }
  void Backward(const Rank& r, const KeyValueBlock& block, const kernels::Matrix& dblock,
                const Part& tasks) const {
    kernels::cuda::AttentionPartBackward(Stream(), r.shape, tasks, r.qkv->View(), block, {},
                                         r.out->View(), r.dout->View(), r.lse->View(),
                                         r.dqkv->View(), dblock, r.scratch->View());
  }

  void AddRank(const AttentionProblem& p, const Cut& cut, std::size_t number, bool dropout,
               AttentionResults& sum) const {
    const Positions& own = cut[number];
    const Rank r = MakeRank(p, own, dropout);
    const std::int64_t queries = p.Queries(), width = p.shape.Width(), keys = width - queries;
    const Part all = {0, kernels::AttentionPartTasks(r.shape)};
    const auto packed = [&](std::size_t step) {
      const Positions& at = cut[(number + cut.size() - step) % cut.size()];
      const Values block = ColumnsOf(RowsAt(p.qkv, width, p.shape, at), width, queries, width);
      return std::pair(at,
                       std::make_unique<GpuMatrix>(Stream(), kAttentionCudnnPartType,
                                                   p.shape.sequences * at.Count(), keys, block));
    };
    kernels::cuda::AttentionPartStart(Stream(), r.out->View(), r.lse->View());
    for (std::size_t step = 0; step < cut.size(); ++step) {
      const auto [at, data] = packed(step);
      Forward(r, {at, data->View()}, all);
      Synchronise();
    }
    kernels::cuda::AttentionPartStartBackward(Stream(), r.shape, r.dqkv->View(), r.scratch->View());
    const KeyValueBlock mine = {own, r.qkv->View().Columns(queries, keys)};
    const kernels::Matrix my_gradient = r.dqkv->View().Columns(queries, keys);
    const std::int64_t middle = kernels::AttentionPartHalf(Stream(), r.shape);
    Backward(r, mine, my_gradient, {0, middle});
    for (std::size_t step = 1; step < cut.size(); ++step) {
      const auto [at, data] = packed(step);
      const auto gradient = Fresh(kAttentionCudnnPartType, data->View().rows, keys);
      Backward(r, {at, data->View()}, gradient->View(), all);
      AddRowsAt(gradient->Values(), keys, p.shape, at, queries, width, sum.dqkv);
    }
    Backward(r, mine, my_gradient, {middle, all.end});
    AddRowsAt(r.out->Values(), queries, p.shape, own, 0, queries, sum.out);
    AddRowsAt(r.lse->Values(), p.shape.heads, p.shape, own, 0, p.shape.heads, sum.lse);
    AddRowsAt(r.dqkv->Values(), width, p.shape, own, 0, width, sum.dqkv);
  }

  AttentionResults InParts(const AttentionProblem& p, int ranks, bool dropout = false) const {
    const auto zeros = [&](std::int64_t columns) {
      return Values(static_cast<std::size_t>(p.Rows() * columns));
    };
    AttentionResults sum = {zeros(p.Queries()), zeros(p.shape.heads), zeros(p.shape.Width())};
    const Cut cut = RingCut(p.shape.length, ranks);
    for (std::size_t rank = 0; rank < cut.size(); ++rank) AddRank(p, cut, rank, dropout, sum);
    return sum;
  }
  AttentionResults InPartsByOurOwn(const AttentionProblem& p, int ranks) {
    const auto before = std::exchange(Context().attention, device::AttentionKernels::kOwn);
    AttentionResults own = InParts(p, ranks);
    Context().attention = before;
    return own;
  }
  device::GpuContext& Context() { return const_cast<device::GpuContext&>(*Stream().gpu); }
};

TEST_F(CudnnPartTest, BlocksOfARingMakeTheWhole) {
  const AttentionShape shapes[] = {
      {2, 288, 4, 2, 32}, {1, 288, 6, 3, 16}, {3, 288, 2, 2, 8}, {1, 576, 2, 1, 64}};
  for (const AttentionShape& shape : shapes) {
    for (const int ranks : {2, 3, 4}) {
      if (shape.length / ranks <= 64) continue;
      const AttentionProblem problem(shape, 0);
      AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnPartType);
      tolerance.out *= 2, tolerance.lse = 1e-4, tolerance.gradient *= 4;
      const AttentionResults got = InParts(problem, ranks);
      ExpectNear(
          problem, got, problem.OnCpu(), tolerance,
          Describe(problem, kAttentionCudnnPartType) + "in " + std::to_string(ranks) + " parts: ");
      // Otherwise our own kernels would be compared with the CPU.
      const AttentionResults own = InPartsByOurOwn(problem, ranks);
      EXPECT_NE(got.out, own.out);
      EXPECT_NE(got.dqkv, own.dqkv);
    }
  }
}

TEST_F(CudnnPartTest, TheSameBitsTwice) {
  const AttentionProblem problem({2, 264, 4, 2, 32}, 0);
  const AttentionResults first = InParts(problem, 2), second = InParts(problem, 2);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.lse, second.lse);
  EXPECT_EQ(first.dqkv, second.dqkv);
}

// Blocks of several sizes, of which some have no plan.
TEST_F(CudnnPartTest, UnequalBlocksAreRight) {
  const AttentionProblem problem({1, 269, 2, 1, 32}, 0);
  AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnPartType);
  tolerance.out *= 2, tolerance.lse = 1e-4, tolerance.gradient *= 4;
  ExpectNear(problem, InParts(problem, 3), problem.OnCpu(), tolerance, "unequal blocks: ");
}

// Passes that have no dropout, as an evaluation's, beside some that have: no backward plan is asked
// for.
TEST_F(CudnnPartTest, WithDropoutOnlyForwardPassesAreServed) {
  const AttentionProblem problem({1, 264, 2, 1, 32}, 0);
  const AttentionResults both = InParts(problem, 2);
  RenewLibraries();
  const AttentionResults forward = InParts(problem, 2, true);
  EXPECT_EQ(forward.out, both.out);
  EXPECT_NE(forward.dqkv, both.dqkv);
}

// A plan that is refused leaves its blocks to our own kernels, in the middle of others.
TEST_F(CudnnPartTest, RefusedPassesAreLeftToOurOwn) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  const EmulatedCudnn forward_only("on,no_backward");
  const AttentionProblem problem({2, 288, 4, 2, 32}, 0);
  AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnPartType);
  tolerance.gradient *= 4;
  ExpectNear(problem, InParts(problem, 2), problem.OnCpu(), tolerance, "no backward pass: ");
}

}  // namespace
}  // namespace trireme::test
