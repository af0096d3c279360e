// cuDNN's attention against our own kernels, on a card: the choice between them must change no more
// than rounding. And what passes between the two, which needs no cuDNN.
#include "attention_testing.hpp"
#include "kernels/backends.hpp"
#include "kernels/cuda/attention.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;

class CudnnAttentionTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !kernels::cuda::CudnnBuilt()) {
      GTEST_SKIP() << "skipped: this program was built without cuDNN";
    }
  }

  struct Calls {
    decltype(kernels::AttentionForward)* forward;
    decltype(kernels::AttentionBackward)* backward;
  };
  AttentionResults Run(const AttentionProblem& p, const Calls& calls) const {
    const AttentionShape& s = p.shape;
    const auto matrix = [&](Dtype type, std::int64_t columns, const Values& values) {
      return GpuMatrix(Stream(), type, p.Rows(), columns, values);
    };
    constexpr Dtype kType = Dtype::kBfloat16, kSum = Dtype::kFloat32;
    const GpuMatrix qkv = matrix(kType, s.Width(), p.qkv);
    const GpuMatrix dout = matrix(kType, p.Queries(), p.dout);
    const GpuMatrix out = matrix(kType, p.Queries(), NoNumbers(p.Rows() * p.Queries()));
    const GpuMatrix lse = matrix(kSum, s.heads, NoNumbers(p.Rows() * s.heads));
    const GpuMatrix dqkv = matrix(kType, s.Width(), NoNumbers(p.Rows() * s.Width()));
    const std::int64_t elements = kernels::cuda::AttentionScratch(Stream(), s);
    const test::OnGpu memory(Stream(), std::vector<float>(static_cast<std::size_t>(elements)));
    const tensor::Matrix scratch = {memory.Data(), kSum, 1, elements, elements};
    calls.forward(Stream(), s, qkv.View(), {}, out.View(), lse.View(), scratch);
    calls.backward(Stream(), s, qkv.View(), {}, out.View(), dout.View(), lse.View(), dqkv.View(),
                   scratch);
    return {out.Values(), lse.Values(), dqkv.Values()};
  }
  AttentionResults Chosen(const AttentionProblem& p) const {
    return Run(p, {&kernels::cuda::AttentionForward, &kernels::cuda::AttentionBackward});
  }
  AttentionResults Own(const AttentionProblem& p) const {
    return Run(p, {&kernels::cuda::OwnAttentionForward, &kernels::cuda::OwnAttentionBackward});
  }
};

TEST_F(CudnnAttentionTest, AgreesWithOurOwn) {
  const AttentionShape shapes[] = {{2, 128, 2, 2, 64},
                                   {2, 512, 4, 2, 64},
                                   {1, 1024, 4, 1, 128},
                                   {3, 200, 2, 1, 64},
                                   {1, 333, 3, 3, 80}};
  for (const AttentionShape& shape : shapes) {
    const AttentionProblem problem(shape, 0);
    EXPECT_GT(kernels::cuda::AttentionScratch(Stream(), shape),
              kernels::cuda::OwnAttentionScratch(shape))
        << "not served: " << Describe(problem, Dtype::kBfloat16);
    // Weights meet values in bf16 there.
    AttentionTolerance tolerance = ToleranceOf(Dtype::kBfloat16);
    tolerance.out *= 2, tolerance.lse = 1e-4, tolerance.gradient *= 2;
    ExpectNear(problem, Chosen(problem), Own(problem), tolerance,
               Describe(problem, Dtype::kBfloat16));
  }
}

TEST_F(CudnnAttentionTest, TheSameBitsTwice) {
  const AttentionProblem problem({2, 512, 4, 2, 64}, 0);
  const AttentionResults first = Chosen(problem), second = Chosen(problem);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.dqkv, second.dqkv);
}

class AttentionStatisticsTest : public GpuTest {};

TEST_F(AttentionStatisticsTest, PackedAndBack) {
  const AttentionShape shape = {2, 37, 3, 1, 8};
  const std::int64_t rows = shape.sequences * shape.length;
  Values values(static_cast<std::size_t>(rows * shape.heads));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  const auto lse = OnGpuAs(Stream(), Dtype::kFloat32, Layout::kOdd, shape.heads, values);
  const auto again =
      OnGpuAs(Stream(), Dtype::kFloat32, Layout::kOdd, shape.heads, NoNumbers(rows * shape.heads));
  const test::OnGpu packed(Stream(), std::vector<float>(values.size()));
  kernels::cuda::PackStatistics(Stream(), shape, lse->View(), packed.As<float>());
  kernels::cuda::UnpackStatistics(Stream(), shape, packed.As<float>(), again->View());
  EXPECT_EQ(again->Values(), values);
  EXPECT_TRUE(again->GapsUntouched());
  // Sequence 1, head 2, position 5.
  const std::size_t at = (1 * 3 + 2) * 37 + 5, from = (37 + 5) * 3 + 2;
  EXPECT_EQ(packed.Out<float>()[at], static_cast<float>(from));
}

}  // namespace
}  // namespace trireme::test
