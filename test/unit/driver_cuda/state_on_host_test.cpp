// Blocks of training state that lie on a GPU, fetched to the host and stored again.
#include "trireme/train/training_state.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gpu_testing.hpp"

namespace trireme::test {
namespace {

class StateOnGpu : public GpuTest {};

template <typename T>
kernels::StateBlock BlockOf(const std::string& name, const OnGpu& memory, std::int64_t begin,
                            std::int64_t end, Dtype dtype) {
  return {.name = name,
          .shape = {end + 3},
          .dtype = dtype,
          .begin = begin,
          .end = end,
          .data = memory.As<T>()};
}

template <typename T>
std::vector<T> ValuesOf(const kernels::StateBlock& block) {
  const auto* const data = static_cast<const T*>(block.data);
  return {data, data + (block.end - block.begin)};
}

const std::vector<float> kSingles = {
    1, -0.0F, 3e38F, 1e-45F, 0.1F, -7, std::numeric_limits<float>::infinity()};
const std::vector<double> kDoubles = {0.1, -1e300, 5e-324, 2};

TEST_F(StateOnGpu, IsFetchedAsItIs) {
  const OnGpu singles(Stream(), kSingles), doubles(Stream(), kDoubles);
  const std::vector<kernels::StateBlock> there = {
      BlockOf<float>("a", singles, 5, 12, Dtype::kFloat32),
      {.name = "elsewhere", .shape = {9, 2}, .dtype = Dtype::kFloat32},
      BlockOf<double>("b", doubles, 0, 4, Dtype::kFloat64)};
  const train::StateOnHost here = train::StateOnHost(Stream(), there).Fetch();
  ASSERT_EQ(here.size(), 3u);
  EXPECT_EQ(ValuesOf<float>(here[0]), kSingles);
  EXPECT_TRUE(std::signbit(ValuesOf<float>(here[0])[1]));
  EXPECT_EQ(ValuesOf<double>(here[2]), kDoubles);
  for (std::size_t i = 0; i < there.size(); ++i) {
    EXPECT_EQ(here[i].name, there[i].name);
    EXPECT_EQ(here[i].shape, there[i].shape);
    EXPECT_EQ(here[i].dtype, there[i].dtype);
    EXPECT_EQ(here[i].begin, there[i].begin);
    EXPECT_EQ(here[i].end, there[i].end);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(here[i].data) % 64, 0u);
  }
  EXPECT_EQ(here.Blocks().data(), &here[0]);
}

TEST_F(StateOnGpu, IsStoredWhereItWas) {
  const OnGpu singles(Stream(), kSingles), doubles(Stream(), kDoubles);
  // The middle of an array: what is around it stays.
  kernels::StateBlock middle = BlockOf<float>("a", singles, 10, 13, Dtype::kFloat32);
  middle.data = singles.As<float>() + 2;
  const train::StateOnHost here =
      train::StateOnHost(Stream(), {middle, BlockOf<double>("b", doubles, 0, 4, Dtype::kFloat64)});
  for (int i = 0; i < 3; ++i) static_cast<float*>(here[0].data)[i] = static_cast<float>(i) + 0.5F;
  for (int i = 0; i < 4; ++i) static_cast<double*>(here[1].data)[i] = i / 3.0;
  EXPECT_EQ(singles.Out<float>(), kSingles);
  here.Store();
  std::vector<float> wanted = kSingles;
  wanted[2] = 0.5F;
  wanted[3] = 1.5F;
  wanted[4] = 2.5F;
  EXPECT_EQ(singles.Out<float>(), wanted);
  EXPECT_EQ(doubles.Out<double>(), (std::vector<double>{0, 1 / 3.0, 2 / 3.0, 1}));
}

// bf16 is fp32 here: fetched exactly, stored rounded to nearest.
TEST_F(StateOnGpu, Bf16PassesThroughFp32) {
  const std::vector<std::uint16_t> bits = {RoundToBfloat16(1), RoundToBfloat16(-3.14F),
                                           RoundToBfloat16(1e-40F), RoundToBfloat16(3e38F),
                                           RoundToBfloat16(0)};
  const OnGpu narrow(Stream(), bits);
  train::StateOnHost here =
      train::StateOnHost(Stream(), {BlockOf<std::uint16_t>("a", narrow, 2, 7, Dtype::kBfloat16)})
          .Fetch();
  EXPECT_EQ(here[0].dtype, Dtype::kFloat32);
  auto* const values = static_cast<float*>(here[0].data);
  for (std::size_t i = 0; i < bits.size(); ++i) EXPECT_EQ(values[i], FromBfloat16(bits[i]));
  here.Store();
  EXPECT_EQ(narrow.Out<std::uint16_t>(), bits);
  values[1] = 1 + 0x1p-8F;             // halfway: to even
  values[2] = 1 + 3 * 0x1p-8F;         // halfway: to even, upwards
  values[3] = 1 + 0x1p-8F + 0x1p-20F;  // above
  here.Store();
  const auto got = narrow.Out<std::uint16_t>();
  EXPECT_EQ(FromBfloat16(got[1]), 1);
  EXPECT_EQ(FromBfloat16(got[2]), 1 + 0x1p-6F);
  EXPECT_EQ(FromBfloat16(got[3]), 1 + 0x1p-7F);
  here = std::move(here).Fetch();
  EXPECT_EQ(values[3], 1 + 0x1p-7F);
}

// Larger than what a copy of ordinary memory takes at once.
TEST_F(StateOnGpu, LargeBlocksPassThrough) {
  const auto size = static_cast<std::size_t>(Stream().gpu->bounce_bytes) / 4 + 1001;
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(i);
  const OnGpu memory(Stream(), values);
  const train::StateOnHost here =
      train::StateOnHost(Stream(),
                         {BlockOf<float>("a", memory, 0, std::ssize(values), Dtype::kFloat32)})
          .Fetch();
  EXPECT_TRUE(ValuesOf<float>(here[0]) == values);
}

// Blocks of a run on the CPU are unchanged.
TEST(StateOnCpu, IsWhereItWas) {
  std::vector<float> values = kSingles;
  const device::Stream cpu;
  const train::StateOnHost here =
      train::StateOnHost(cpu, {{.name = "a", .shape = {7}, .end = 7, .data = values.data()}})
          .Fetch();
  EXPECT_EQ(here[0].data, values.data());
  here.Store();
  EXPECT_EQ(values, kSingles);
}

}  // namespace
}  // namespace trireme::test
