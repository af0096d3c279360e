// cuDNN's attention against our own kernels, on a card: the choice between them must change no more
// than rounding. Conversions between the two, which need no cuDNN.
#include "attention_testing.hpp"
#include "kernels/backends.hpp"
#include "kernels/gpu_sizes.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;

constexpr Dtype kAttentionCudnnType = Dtype::kBfloat16, kSum = Dtype::kFloat32;

struct Calls {
  decltype(kernels::AttentionForward)* forward;
  decltype(kernels::AttentionBackward)* backward;
};
constexpr Calls kChosen = {&kernels::cuda::AttentionForward, &kernels::cuda::AttentionBackward};
constexpr Calls kOwn = {&kernels::cuda::OwnAttentionForward, &kernels::cuda::OwnAttentionBackward};

// A problem's operands on the card, in bf16 and without dropout.
class AttentionCudnnOperands {
 public:
  AttentionCudnnOperands(const device::Stream& stream, const AttentionProblem& p)
      : stream_(stream),
        begins_(stream, p.begins),
        shape_(p.shape),
        qkv_(stream, kAttentionCudnnType, p.Rows(), p.shape.Width(), p.qkv),
        dout_(stream, kAttentionCudnnType, p.Rows(), p.Queries(), p.dout),
        out_(stream, kAttentionCudnnType, p.Rows(), p.Queries(), NoNumbers(p.Rows() * p.Queries())),
        lse_(stream, kSum, p.Rows(), p.shape.heads, NoNumbers(p.Rows() * p.shape.heads)),
        dqkv_(stream, kAttentionCudnnType, p.Rows(), p.shape.Width(),
              NoNumbers(p.Rows() * p.shape.Width())),
        elements_(kernels::cuda::AttentionScratch(stream, p.shape, kAttentionCudnnType, false)),
        scratch_(stream, std::vector<float>(static_cast<std::size_t>(elements_))) {
    if (!p.begins.empty()) shape_.begins = begins_.As<std::int32_t>();
  }

  // Queues both passes.
  void Run(const Calls& calls) const {
    const tensor::Matrix scratch = {scratch_.Data(), kSum, 1, elements_, elements_};
    calls.forward(stream_, shape_, qkv_.View(), {}, out_.View(), lse_.View(), scratch);
    calls.backward(stream_, shape_, qkv_.View(), {}, out_.View(), dout_.View(), lse_.View(),
                   dqkv_.View(), scratch);
  }
  AttentionResults Results() const { return {out_.Values(), lse_.Values(), dqkv_.Values()}; }
  // Of out, lse and dqkv, one after another.
  std::vector<unsigned char> Bits() const {
    std::vector<unsigned char> all;
    for (const GpuMatrix* m : {&out_, &lse_, &dqkv_}) {
      const auto bits = m->Bits();
      all.insert(all.end(), bits.begin(), bits.end());
    }
    return all;
  }

 private:
  const device::Stream& stream_;
  test::OnGpu begins_;
  AttentionShape shape_;
  GpuMatrix qkv_, dout_, out_, lse_, dqkv_;
  std::int64_t elements_;
  test::OnGpu scratch_;
};

// Documents are our own kernels' matter, in a shape that cuDNN serves where it is built in.
class DocumentsAttentionTest : public AttentionOnGpu {};

TEST_F(DocumentsAttentionTest, AreLeftToOurOwnKernels) {
  AttentionProblem problem({2, 128, 2, 1, 64}, 0);
  problem.begins = RandomBegins(2, 128, 20, 3);
  const AttentionCudnnOperands chosen(Stream(), problem), own(Stream(), problem);
  chosen.Run(kChosen);
  own.Run(kOwn);
  EXPECT_EQ(chosen.Bits(), own.Bits());
}

class CudnnAttentionTest : public CudnnOnGpu {
 protected:
  AttentionResults Run(const AttentionProblem& p, const Calls& calls) const {
    const AttentionCudnnOperands operands(Stream(), p);
    operands.Run(calls);
    return operands.Results();
  }
  // Otherwise our own kernels would be compared with themselves.
  void ExpectServed(const AttentionShape& shape) const {
    for (const bool backward : {false, true}) {
      EXPECT_TRUE(kernels::cuda::CudnnServes(Stream(), shape, kAttentionCudnnType, backward))
          << shape.heads << " heads, length " << shape.length
          << (backward ? ", backward" : ", forward");
    }
  }
};

TEST_F(CudnnAttentionTest, AgreesWithOurOwn) {
#ifdef TRIREME_EMULATED
  const AttentionShape shapes[] = {{2, 128, 2, 2, 64}, {3, 200, 2, 1, 64}, {1, 133, 3, 3, 80}};
#else
  const AttentionShape shapes[] = {{2, 128, 2, 2, 64},
                                   {2, 512, 4, 2, 64},
                                   {1, 1024, 4, 1, 128},
                                   {3, 200, 2, 1, 64},
                                   {1, 333, 3, 3, 80}};
#endif
  for (const AttentionShape& shape : shapes) {
    const AttentionProblem problem(shape, 0);
    ExpectServed(shape);
    // Weights meet values in bf16 there.
    AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnType);
    tolerance.out *= 2, tolerance.lse = 1e-4, tolerance.gradient *= 2;
    ExpectNear(problem, Run(problem, kChosen), Run(problem, kOwn), tolerance,
               Describe(problem, kAttentionCudnnType));
  }
}

// The second cuts its batch into pieces; a race needs many blocks and several runs to show.
TEST_F(CudnnAttentionTest, TheSameBitsTenTimes) {
#ifdef TRIREME_EMULATED
  const AttentionShape shapes[] = {{2, 128, 4, 2, 32}};
#else
  const AttentionShape shapes[] = {
      {2, 512, 4, 2, 64}, {16, 1024, 12, 12, 64}, {2, 4096, 32, 8, 128}};
#endif
  for (const AttentionShape& shape : shapes) {
    ExpectServed(shape);
    const AttentionCudnnOperands operands(Stream(), AttentionProblem(shape, 0));
    operands.Run(kChosen);
    const auto first = operands.Bits();
    for (int i = 1; i < 10; ++i) {
      operands.Run(kChosen);
      // Not EXPECT_EQ, which would print them.
      EXPECT_TRUE(operands.Bits() == first) << "run " << i << ", length " << shape.length;
    }
  }
}

// Memory that a recorded graph reads must be there when it is launched later.
TEST_F(CudnnAttentionTest, TheSameBitsFromARecording) {
  const AttentionProblem problem({3, 200, 2, 1, 64}, 0);
  ExpectServed(problem.shape);
  const AttentionCudnnOperands at_once(Stream(), problem), recorded(Stream(), problem);
  at_once.Run(kChosen);
  const auto want = at_once.Bits();
  device::Graph graph;
  graph.Begin(Stream());
  recorded.Run(kChosen);
  graph.End(Stream());
  for (int i = 0; i < 3; ++i) {
    // The host's memory is used anew.
    const std::vector<std::vector<float>> others(1000, std::vector<float>(64 << i, 1e30F));
    graph.Launch(Stream());
    Synchronise();
    EXPECT_TRUE(recorded.Bits() == want) << "launch " << i;
  }
}

// Heads that share keys may want more than pieces usually may: a part of the card's memory, 16 GiB
// in the emulator, unless the workspace grows with the length alone.
TEST_F(CudnnAttentionTest, WorkspaceDecides) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  const auto serves = [&](std::int64_t shared) {
    return kernels::cuda::CudnnServes(Stream(), {1, 8192, shared, 1, 64}, kAttentionCudnnType,
                                      true);
  };
  EXPECT_TRUE(serves(4));    // 512 MiB
  EXPECT_TRUE(serves(5));    // 640
  EXPECT_FALSE(serves(16));  // 2,048
  EXPECT_TRUE(
      kernels::cuda::CudnnServes(Stream(), {1, 8192, 16, 1, 64}, kAttentionCudnnType, false));
}

TEST_F(CudnnAttentionTest, LinearWorkspaceServesAnyLength) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  const EmulatedCudnn linear("on,linear");
  EXPECT_TRUE(
      kernels::cuda::CudnnServes(Stream(), {1, 8192, 16, 1, 64}, kAttentionCudnnType, true));
}

TEST_F(CudnnAttentionTest, OneRefusedPassIsLeftToOurOwn) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  const AttentionProblem problem({2, 128, 2, 1, 64}, 0);
  const AttentionResults own = Run(problem, kOwn), both = Run(problem, kChosen);
  const EmulatedCudnn forward_only("on,no_backward");
  RenewLibraries();
  const AttentionCudnnOperands operands(Stream(), problem);
  operands.Run(kChosen);
  const AttentionResults got = operands.Results();
  EXPECT_EQ(got.out, both.out);
  EXPECT_NE(got.out, own.out);
  EXPECT_NE(got.dqkv, both.dqkv);
  ExpectNear(problem, got, own, ToleranceOf(kAttentionCudnnType),
             Describe(problem, kAttentionCudnnType));
}

class AttentionChoiceTest : public AttentionOnGpu {};

// No request to cuDNN, and no scratch planned for it, if it will not be called.
TEST_F(AttentionChoiceTest, PlansForWhatIsCalled) {
  const AttentionShape shape = {2, 128, 2, 2, 64}, short_one = {2, 64, 2, 2, 64};
  const auto scratch = [&](const AttentionShape& of, Dtype dtype) {
    return kernels::cuda::AttentionScratch(Stream(), of, dtype, false);
  };
  const auto own = [&](const AttentionShape& of) {
    return kernels::gpu::AttentionScratch(Stream(), of, kAttentionCudnnType, false);
  };
  EXPECT_EQ(scratch(shape, Dtype::kFloat32), own(shape));
  EXPECT_EQ(scratch(short_one, kAttentionCudnnType), own(short_one));
  for (const bool backward : {false, true}) {
    EXPECT_FALSE(kernels::cuda::CudnnServes(Stream(), shape, Dtype::kFloat32, backward));
    EXPECT_FALSE(kernels::cuda::CudnnServes(Stream(), short_one, kAttentionCudnnType, backward));
    if (kernels::cuda::CudnnName().empty()) {
      EXPECT_FALSE(kernels::cuda::CudnnServes(Stream(), shape, kAttentionCudnnType, backward));
    }
  }
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
