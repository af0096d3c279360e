// Attention to whole sequences by our own kernels on a GPU against the CPU's in fp64, in all types.
#include <cmath>
#include <stdexcept>

#include "attention_testing.hpp"
#include "kernels/backends.hpp"
#include "kernels/cuda/attention.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;

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
        kernels::cuda::OwnAttentionForward(stream, shape, qkv.View(), {}, out.View(), sums.View(),
                                           sums.View());
      } else {
        kernels::cuda::OwnAttentionBackward(stream, shape, qkv.View(), {}, out.View(), out.View(),
                                            sums.View(), qkv.View(), sums.View());
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

}  // namespace
}  // namespace trireme::test
