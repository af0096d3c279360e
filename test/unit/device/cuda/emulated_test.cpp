// What only the emulator can show: several cards, and other orders.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>

#include "device_testing.hpp"
#include "emulator/stream.hpp"

namespace trireme::test {
namespace {

// Missing, too small and hidden cards, and CUDA's environment. Each test runs in a process of its
// own, since CUDA reads its environment once.

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

// Independence of luck, with the emulator's orders decided by a seed: the queue that work goes to,
// and a failure if a wait is left out.

constexpr std::int64_t kOrdersSize = 100, kOrdersBytes = kOrdersSize * 4;
constexpr unsigned long long kLazy = 1;  // a seed by which queues run only where they are awaited
constexpr unsigned long long kSeeds = 12;

class GpuOrders : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    x_ = device::AllocateZeroed(kOrdersBytes, device::Kind::kCuda);
    y_ = device::AllocateZeroed(kOrdersBytes, device::Kind::kCuda);
    in_ = std::make_unique<PinnedInts>(kOrdersSize, 7);
    out_ = std::make_unique<PinnedInts>(kOrdersSize);
  }
  void TearDown() override {
    Synchronise();
    x_.reset();
    y_.reset();
    in_.reset();
    out_.reset();
  }
  device::Buffer x_, y_;
  std::unique_ptr<PinnedInts> in_, out_;
};

// Input does not wait for the computation before it, nor run it.
TEST_F(GpuOrders, InputHasAQueueOfItsOwn) {
  emulator::SetSeed(kLazy);
  device::Event arrived(Stream()), computed(Stream());
  device::StartCopyIn(Stream(), in_->Data(), y_.get(), kOrdersBytes);
  device::StartCopyOut(Stream(), y_.get(), out_->Data(), kOrdersBytes);
  device::StartInput(Stream(), in_->Data(), x_.get(), kOrdersBytes);
  arrived.Record(Stream().gpu->input_queue);
  arrived.Await();
  EXPECT_TRUE(out_->All(0));
  Synchronise();
  EXPECT_TRUE(out_->All(7));
  device::CopyWithin(Stream(), x_.get(), y_.get(), kOrdersBytes);
  out_->Fill(0);
  device::StartCopyOut(Stream(), y_.get(), out_->Data(), kOrdersBytes);
  Synchronise();
  EXPECT_TRUE(out_->All(7));
}

// in -> x by the queue of input, x -> out by the computation's.
bool Arrives(const device::Stream& stream, const device::Buffer& x, const PinnedInts& in,
             PinnedInts& out, bool wait, unsigned long long seed) {
  emulator::SetSeed(seed);
  out.Fill(0);
  device::SetZero(stream, x.get(), kOrdersBytes);
  device::Synchronise(stream);
  device::Event arrived(stream);
  device::StartInput(stream, in.Data(), x.get(), kOrdersBytes);
  arrived.Record(stream.gpu->input_queue);
  if (wait) arrived.MakeWait(stream.gpu->queue);
  device::StartCopyOut(stream, x.get(), out.Data(), kOrdersBytes);
  device::Synchronise(stream);
  const bool right = out.All(7);
  arrived.Await();
  return right;
}

TEST_F(GpuOrders, AWaitThatIsLeftOutShows) {
  int caught = 0;
  for (unsigned long long seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_TRUE(Arrives(Stream(), x_, *in_, *out_, true, seed)) << seed;
    caught += Arrives(Stream(), x_, *in_, *out_, false, seed) ? 0 : 1;
  }
  EXPECT_GT(caught, static_cast<int>(kSeeds) / 2);
}

// Behind an exception nothing is awaited: a transfer's other side may be gone.
TEST_F(GpuOrders, ADrainDoesNotWaitBehindAnException) {
  emulator::SetSeed(kLazy);
  try {
    const device::Drain drain(Stream());
    device::StartCopyIn(Stream(), in_->Data(), x_.get(), kOrdersBytes);
    device::StartCopyOut(Stream(), x_.get(), out_->Data(), kOrdersBytes);
    throw std::runtime_error("in the middle");
  } catch (const std::runtime_error&) {
    EXPECT_TRUE(out_->All(0));
  }
  { const device::Drain drain(Stream()); }
  EXPECT_TRUE(out_->All(7));
}

// A copy of ordinary memory is complete when it returns, and does not wait for the queue of input.
TEST_F(GpuOrders, ACopyOfOrdinaryMemoryIsCompleteWhenItReturns) {
  emulator::SetSeed(kLazy);
  std::vector<std::int32_t> host(kOrdersSize, 4);
  device::CopyIn(Stream(), host.data(), x_.get(), kOrdersBytes);
  std::fill(host.begin(), host.end(), 5);  // read already
  device::StartCopyOut(Stream(), x_.get(), out_->Data(), kOrdersBytes);
  device::CopyOut(Stream(), x_.get(), host.data(), kOrdersBytes);
  EXPECT_EQ(host, std::vector<std::int32_t>(kOrdersSize, 4));
  EXPECT_TRUE(out_->All(4));  // there before
}

TEST_F(GpuOrders, FreeMemoryIsCountedToTheByte) {
  const std::int64_t free = device::FreeBytes(Stream());
  const device::Buffer buffer = device::AllocateZeroed(1000, device::Kind::kCuda);
  EXPECT_EQ(device::FreeBytes(Stream()), free - 1024);
}

// Files in a card's memory that the host uses as its own are given up to whoever allocates. The
// host's first node holds this program's file at least.
TEST_F(GpuOrders, FreeMemoryHasTheFileCacheOfACardThatIsANode) {
  if (!std::filesystem::exists("/sys/devices/system/node/node0/meminfo")) {
    GTEST_SKIP() << "no /sys/devices/system/node here";
  }
  const std::int64_t free = device::FreeBytes(Stream());
  ::setenv("TRIREME_EMULATOR_NUMA_NODE", "0", 1);
  const std::int64_t with_files = device::FreeBytes(Stream());
  ::setenv("TRIREME_EMULATOR_NUMA_NODE", "12345", 1);
  const std::int64_t unknown = device::FreeBytes(Stream());
  ::setenv("TRIREME_EMULATOR_NUMA_NODE", "-2", 1);
  const std::int64_t older = device::FreeBytes(Stream());
  ::unsetenv("TRIREME_EMULATOR_NUMA_NODE");
  EXPECT_EQ(older, free);
  device::CopyIn(Stream(), std::vector<std::int32_t>(kOrdersSize, 4).data(), x_.get(),
                 kOrdersBytes);
  EXPECT_GT(with_files, free + (1 << 20));
  EXPECT_EQ(unknown, free);
}

}  // namespace
}  // namespace trireme::test
