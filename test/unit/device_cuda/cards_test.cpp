// Missing, too small and hidden cards, and CUDA's environment. Each test runs in a process of its
// own, since CUDA reads its environment once.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "device_testing.hpp"

namespace trireme::test {
namespace {

class CardsDeathTest : public testing::Test {
 protected:
  CardsDeathTest() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

// Says it on stderr, where a death test looks, and leaves.
[[noreturn]] void Say(const std::string& text) {
  std::fprintf(stderr, "[%s]\n", text.c_str());
  std::_Exit(0);
}
std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + ";";
  return text;
}
void Set(const char* name, const char* value) { setenv(name, value, 1); }
std::string Get(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "unset" : value;
}
std::string Opening(int card) {
  return MessageOf([&] { device::Gpu{card}; });
}
// "emulated-3" in hexadecimal, filled up to an identity's length with zeros.
std::string IdOf(int card) {
  return "656d756c617465642d3" + std::to_string(card) + "000000000000;";
}

const auto kLeaves = testing::ExitedWithCode(0);

TEST_F(CardsDeathTest, NoneIsSaid) {
  EXPECT_EXIT(
      {
        Set("TRIREME_EMULATOR_DEVICES", "0");
        Say(device::WhyNoGpu());
      },
      kLeaves, "^\\[no CUDA device: no CUDA-capable device is detected\\]");
  EXPECT_EXIT(
      {
        Set("TRIREME_EMULATOR_DEVICES", "0");
        Say(Joined(device::GpuIds()) + Opening(0));
      },
      kLeaves, "^\\[opening the GPU: CUDA says no CUDA-capable device is detected \\(100\\)\\]");
  EXPECT_EXIT(
      {
        Set("TRIREME_EMULATOR_DEVICES", "1");
        Say(device::WhyNoGpu());
      },
      kLeaves, "^\\[\\]");
}

TEST_F(CardsDeathTest, ThereIsNoneOfThatNumber) {
  EXPECT_EXIT(Say(Opening(99)), kLeaves,
              "^\\[opening the GPU: CUDA says invalid device ordinal \\(101\\)\\]");
  EXPECT_EXIT(
      {
        Set("TRIREME_EMULATOR_DEVICES", "2");
        Say(Opening(2));
      },
      kLeaves, "invalid device ordinal");
}

TEST_F(CardsDeathTest, OnlyThoseThatAreShownAreSeen) {
  EXPECT_EXIT(
      {
        Set("TRIREME_EMULATOR_DEVICES", "4");
        Set("CUDA_VISIBLE_DEVICES", "3,1");
        Say(Joined(device::GpuIds()));
      },
      kLeaves, IdOf(3) + IdOf(1));
  EXPECT_EXIT(
      {
        Set("CUDA_VISIBLE_DEVICES", "");
        Say(device::WhyNoGpu() + Joined(device::GpuIds()));
      },
      kLeaves, "no CUDA-capable device is detected\\]");
}

// The buffers of a card that was opened take 96 MiB.
TEST_F(CardsDeathTest, MemoryThatDoesNotSufficeIsNamed) {
  constexpr const char* kAdvice =
      "^\\[memory of the GPU: CUDA says out of memory \\(2\\)\n"
      "  Lower data.micro_batch, set model.recompute or grid.sharding, or use more GPUs.\\]";
  EXPECT_EXIT(
      {
        Set("TRIREME_EMULATOR_MEMORY_MIB", "100");
        const device::Gpu gpu(0);
        const device::Stream stream{.gpu = &gpu.Context()};
        if (device::FreeBytes(stream) != 4 << 20) Say("another size");
        device::AllocateZeroed(4 << 20, device::Kind::kCuda);  // and gone again
        const device::Buffer most = device::AllocateZeroed(3 << 20, device::Kind::kCuda);
        Say(MessageOf([] { device::AllocateZeroed(2 << 20, device::Kind::kCuda); }));
      },
      kLeaves, kAdvice);
  EXPECT_EXIT(
      {
        Set("TRIREME_EMULATOR_MEMORY_MIB", "40");
        Say(Opening(0));
      },
      kLeaves, kAdvice);
}

// Setting of kernels' loading in the environment, after a launcher has set `launcher`.
std::string Prepared(const std::map<std::string, const char*>& launcher) {
  for (const char* const name :
       {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
        "SLURM_NTASKS", "PMIX_RANK", "PMI_RANK"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : launcher) Set(name.c_str(), value);
  device::PrepareGpuEnvironment();
  return Get("CUDA_DEVICE_MAX_CONNECTIONS") + Get("CUDA_MODULE_LOADING");
}

TEST_F(CardsDeathTest, TheEnvironmentIsPreparedUnlessTheUserHas) {
  // Alone nothing waits while a kernel is loaded.
  EXPECT_EXIT({ Say(Prepared({})); }, kLeaves, "^\\[32LAZY\\]");
  EXPECT_EXIT(
      {
        Say(Prepared({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}}));
      },
      kLeaves, "^\\[32LAZY\\]");
  EXPECT_EXIT(
      {
        Say(Prepared({{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_NTASKS", "1"}}));
      },
      kLeaves, "^\\[32EAGER\\]");
  EXPECT_EXIT({ Say(Prepared({{"SLURM_NTASKS", "16"}})); }, kLeaves, "^\\[32EAGER\\]");
  EXPECT_EXIT({ Say(Prepared({{"PMIX_RANK", "0"}})); }, kLeaves, "^\\[32EAGER\\]");
  EXPECT_EXIT(
      {
        Set("CUDA_DEVICE_MAX_CONNECTIONS", "1");
        Set("CUDA_MODULE_LOADING", "LAZY");
        device::PrepareGpuEnvironment();
        Say(Get("CUDA_DEVICE_MAX_CONNECTIONS") + Get("CUDA_MODULE_LOADING"));
      },
      kLeaves, "^\\[1LAZY\\]");
}

}  // namespace
}  // namespace trireme::test
