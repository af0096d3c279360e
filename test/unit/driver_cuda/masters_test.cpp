// Parameters on a GPU: weights in bf16 are the roundings of masters in fp32, which the optimizer
// moves as the CPU moves its weights.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "gpu_testing.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/train/optimizer.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::test {
namespace {

constexpr std::uint32_t kMastersSeed = 7;
constexpr std::int64_t kTargets = 50;
// Relative: a few roundings a step. The moments' roots and quotients are the CPU's to their last
// bits, and what is left is of the size of a rounding of the weights.
constexpr double kFp32 = 1e-6;

using Floats = std::vector<float>;

kernels::ParameterList Parameters() {
  kernels::ParameterList list;
  using kernels::InitialiserKind;
  list.BeginUnit("embedding");
  list.Add({.name = "embedding",
            .shape = {101, 5},
            .initialiser = {InitialiserKind::kNormal, 0.5},
            .decay = true});
  list.BeginUnit("block", true);
  list.Add({.name = "query",
            .shape = {17, 5},
            .initialiser = {InitialiserKind::kUniform, 0.25},
            .decay = true});
  list.Add({.name = "key",
            .shape = {17, 5},
            .initialiser = {InitialiserKind::kUniform, 0.25},
            .decay = true,
            .adjacent = true});
  list.Add({.name = "norm", .shape = {5}, .initialiser = {InitialiserKind::kConstant, 1}});
  return list;
}

// Elements [begin, end) of all parameters on this rank, as with ZeRO; sharded: nothing else is
// stored of the values.
kernels::Ownership Own(std::int64_t size, Part own, bool sharded) {
  kernels::Ownership owns;
  owns.pieces = {{.range = {0, size},
                  .own = own,
                  .value = sharded ? 0 : own.begin,
                  .gradient = own.begin,
                  .moment = 0}};
  owns.values_sharded = sharded;
  owns.values = sharded ? own.Size() : size;
  owns.gradients = size;
  owns.moments = own.Size();
  return owns;
}

// Bytes that a buffer takes.
std::int64_t BufferBytes(std::int64_t bytes) { return CeilDivide(bytes, 128) * 128; }

class Masters : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    cpu_ = kernels::Registry(Parameters(), Dtype::kFloat32);
    cpu_.Initialise(kMastersSeed);
  }
  // A registry of bf16 on the GPU with everything, or as the ownership says.
  void Allocate(kernels::Registry& registry, const kernels::Ownership* owns = nullptr) const {
    kernels::ParameterList list = Parameters();
    const kernels::Ownership all = kernels::OwnAll(list.Size());
    registry = kernels::Registry(std::move(list), Dtype::kBfloat16, owns == nullptr ? all : *owns,
                                 true, Stream());
    registry.Initialise(kMastersSeed);
  }
  template <typename T>
  std::vector<T> Out(const void* data, std::int64_t count) const {
    std::vector<T> host(static_cast<std::size_t>(count));
    device::CopyOut(Stream(), data, host.data(), count * static_cast<std::int64_t>(sizeof(T)));
    return host;
  }
  Floats Wanted(std::int64_t begin, std::int64_t end) const {
    const auto* const values = static_cast<const float*>(cpu_.Values());
    return {values + begin, values + end};
  }
  static std::vector<std::uint16_t> Rounded(const Floats& values) {
    std::vector<std::uint16_t> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), RoundToBfloat16);
    return rounded;
  }
  kernels::Registry cpu_;
};

TEST_F(Masters, ValuesAreTheirRoundings) {
  kernels::Registry gpu;
  Allocate(gpu);
  const std::int64_t size = gpu.Size();
  EXPECT_EQ(size, cpu_.Size());
  EXPECT_EQ(gpu.Type(), Dtype::kBfloat16);
  EXPECT_EQ(gpu.SumType(), Dtype::kFloat32);
  EXPECT_EQ(gpu.ValueBytes(), BufferBytes(size * 2) + BufferBytes(size * 4));
  EXPECT_EQ(gpu.GradientBytes(), BufferBytes(size * 4));
  EXPECT_EQ(gpu.Value(1).dtype, Dtype::kBfloat16);
  EXPECT_EQ(gpu.Gradient(1).dtype, Dtype::kFloat32);
  ASSERT_NE(gpu.Masters(), nullptr);
  EXPECT_EQ(Out<float>(gpu.Masters(), size), Wanted(0, size));
  EXPECT_EQ(Out<std::uint16_t>(gpu.Values(), size), Rounded(Wanted(0, size)));
}

// A checkpoint holds the masters: those of the CPU's run, bit for bit.
TEST_F(Masters, AreWhatBlocksHold) {
  kernels::Registry gpu;
  Allocate(gpu);
  const train::StateOnHost here = train::StateOnHost(Stream(), gpu.ValueBlocks(0, 1, 1)).Fetch();
  const auto wanted = cpu_.ValueBlocks(0, 1, 1);
  ASSERT_EQ(here.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(here[i].name, wanted[i].name);
    EXPECT_EQ(here[i].dtype, Dtype::kFloat32);
    ASSERT_EQ(here[i].end, wanted[i].end);
    EXPECT_TRUE(std::equal(static_cast<const float*>(here[i].data),
                           static_cast<const float*>(here[i].data) + here[i].end,
                           static_cast<const float*>(wanted[i].data)))
        << wanted[i].name;
  }
}

// Without gradients, as for an evaluation, nobody needs them.
TEST_F(Masters, AreForTrainingOnly) {
  kernels::Registry gpu(Parameters(), Dtype::kBfloat16, false, Stream());
  gpu.Initialise(kMastersSeed);
  EXPECT_EQ(gpu.Masters(), nullptr);
  EXPECT_EQ(Out<std::uint16_t>(gpu.Values(), gpu.Size()), Rounded(Wanted(0, gpu.Size())));
  EXPECT_EQ(gpu.ValueBlocks(0, 1, 1)[0].dtype, Dtype::kBfloat16);
}

TEST_F(Masters, AreOfTheOwnedElementsAlone) {
  const std::int64_t size = cpu_.Size();
  for (const bool sharded : {false, true}) {
    for (const Part own : {Part{0, size / 3}, Part{size / 3, size - 7}, Part{size - 7, size}}) {
      kernels::Registry gpu;
      const kernels::Ownership owns = Own(size, own, sharded);
      Allocate(gpu, &owns);
      EXPECT_EQ(gpu.ValueBytes(), BufferBytes(owns.values * 2) + BufferBytes(own.Size() * 4));
      EXPECT_EQ(Out<float>(gpu.Masters(), own.Size()), Wanted(own.begin, own.end));
      const Part stored = sharded ? own : Part{0, size};
      EXPECT_EQ(Out<std::uint16_t>(gpu.Values(), stored.Size()),
                Rounded(Wanted(stored.begin, stored.end)));
    }
  }
}

// Gradients of one size on both, of the size that a few hundred targets give.
Floats SomeGradients(std::int64_t size, int step) {
  Floats gradients(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(step) * 13)) * 20;
  }
  return gradients;
}

double Worst(const Floats& got, const Floats& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    worst = std::max(worst, difference / std::max(1e-2, std::abs(static_cast<double>(wanted[i]))));
  }
  return worst;
}

class MastersMove : public Masters, public testing::WithParamInterface<train::OptimizerKind> {};

// The elements of parameters, in their order; what lies between is nobody's.
TEST_P(MastersMove, AsTheWeightsOfTheCpu) {
  constexpr int kSteps = 6;
  const std::int64_t size = cpu_.Size();
  const train::OptimizerOptions options{.kind = GetParam(), .weight_decay = 0.1, .clip_norm = 0.8};
  for (const Part own : {Part{0, size}, Part{61, size - 35}}) {
    kernels::Registry gpu;
    const kernels::Ownership owns = Own(size, own, false);
    kernels::Registry reference(Parameters(), Dtype::kFloat32, owns);
    reference.Initialise(kMastersSeed);
    Allocate(gpu, &owns);
    train::Optimizer wanted(options, reference, {}), got(options, gpu, Stream());
    for (int step = 1; step <= kSteps; ++step) {
      const Floats gradients = SomeGradients(size, step);
      std::copy(gradients.begin(), gradients.end(), static_cast<float*>(reference.Gradients()));
      device::CopyIn(Stream(), gradients.data(), gpu.Gradients(), size * 4);
      const double squares = wanted.GradientSquares();
      got.QueueSquares();
      Synchronise();
      EXPECT_NEAR(got.GradientSquares() / squares, 1, 1e-6);
      const double norm = std::sqrt(squares) / static_cast<double>(kTargets);
      EXPECT_GT(norm, options.clip_norm);
      wanted.Step(step, 1e-2, norm, kTargets, step % 2 == 0);
      got.Step(step, 1e-2, norm, kTargets, step % 2 == 0);
      const Floats left = Out<float>(gpu.Gradients(), size);
      if (step % 2 == 0) {
        EXPECT_THAT(left, testing::Each(0.0F));
      } else {
        EXPECT_EQ(left, gradients);
      }
    }
    const auto* const values = static_cast<const float*>(reference.Values());
    const Floats masters = Out<float>(gpu.Masters(), own.Size());
    EXPECT_LT(Worst(masters, {values + own.begin, values + own.end}), kFp32);
    EXPECT_GT(Worst(masters, Wanted(own.begin, own.end)), 1e-2);  // moved
    // Copies are roundings of the masters where they are owned, and as they were elsewhere.
    const auto copies = Out<std::uint16_t>(gpu.Values(), size);
    auto expected = Rounded(Wanted(0, size));
    const auto moved = Rounded(masters);
    std::copy(moved.begin(), moved.end(), expected.begin() + own.begin);
    EXPECT_EQ(copies, expected);
    const train::StateOnHost moments = train::StateOnHost(Stream(), got.Blocks(0, 1, 1)).Fetch();
    const auto reference_moments = wanted.Blocks(0, 1, 1);
    ASSERT_EQ(moments.size(), reference_moments.size());
    for (std::size_t i = 0; i < moments.size(); ++i) {
      const auto count = static_cast<std::size_t>(moments[i].end - moments[i].begin);
      const auto* const a = static_cast<const float*>(moments[i].data);
      const auto* const b = static_cast<const float*>(reference_moments[i].data);
      EXPECT_EQ(moments[i].begin, reference_moments[i].begin);
      EXPECT_LT(Worst({a, a + count}, {b, b + count}), kFp32) << moments[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, MastersMove,
                         testing::Values(train::OptimizerKind::kAdamW, train::OptimizerKind::kSgd),
                         [](const auto& info) {
                           return info.param == train::OptimizerKind::kSgd ? "Sgd" : "AdamW";
                         });

// Behind the reading of a checkpoint.
TEST_F(Masters, AreRoundedOnceMore) {
  kernels::Registry gpu;
  Allocate(gpu);
  train::Optimizer optimizer({}, gpu, Stream());
  Floats masters = Wanted(0, gpu.Size());
  for (float& master : masters) master = master * 1.7F + 0.01F;
  device::CopyIn(Stream(), masters.data(), gpu.Masters(), gpu.Size() * 4);
  optimizer.RoundMasters();
  const auto values = Out<std::uint16_t>(gpu.Values(), gpu.Size());
  for (const kernels::Parameter& parameter : gpu.Parameters()) {
    const auto begin = static_cast<std::size_t>(parameter.offset);
    for (std::size_t i = begin; i < begin + static_cast<std::size_t>(parameter.LocalSize()); ++i) {
      EXPECT_EQ(values[i], RoundToBfloat16(masters[i])) << parameter.name;
    }
  }
}

TEST_F(Masters, TheFirstGradientThatIsNotFiniteIsNamed) {
  kernels::Registry gpu;
  Allocate(gpu);
  train::Optimizer optimizer({}, gpu, Stream());
  EXPECT_EQ(optimizer.FirstNotFinite(), "");
  for (const float bad : {std::nanf(""), -HUGE_VALF}) {
    for (const int id : {3, 2, 0}) {
      const kernels::Matrix gradient = gpu.Gradient(id);
      device::CopyIn(Stream(), &bad, gradient.As<float>() + gradient.Size() - 1, 4);
      EXPECT_EQ(optimizer.FirstNotFinite(), gpu.Parameters()[static_cast<std::size_t>(id)].name);
      optimizer.QueueSquares();
      Synchronise();
      EXPECT_FALSE(std::isfinite(optimizer.GradientSquares()));
    }
    gpu.ZeroGradients();
    EXPECT_EQ(optimizer.FirstNotFinite(), "");
  }
}

}  // namespace
}  // namespace trireme::test
