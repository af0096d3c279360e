// Device memory: guards, closed while host code runs, never used again; copies; the card's size.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

TEST(Memory, StartsAsNanAndIsAligned) {
  for (const std::size_t size : {1, 4, 5, 1023, 4096, 300000}) {
    const Array<float> array(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.Data()) % 16, 0u);
    for (const float value : array.Values()) ASSERT_TRUE(std::isnan(value));
  }
}

TEST(Memory, CopiesArriveAndAddressesAreNotUsedAgain) {
  const std::vector<int> values = {1, 2, 3, 5, 8};
  const Array<int> array(values);
  EXPECT_EQ(array.Values(), values);
  auto first = std::make_unique<Array<int>>(100);
  const int* freed = first->Data();
  first.reset();
  const Array<int> second(100);
  EXPECT_NE(second.Data(), freed);
}

TEST(Memory, ClearedMemoryIsZeroAndNoMoreThanAsked) {
  const Stream stream;
  for (const std::size_t size : {3, 5000, 3000000}) {
    const Array<float> all(size), part(size), late(std::vector<float>(size, 2.0f));
    Check(cudaMemsetAsync(all.Data(), 0, size * 4, stream), "clearing");
    Check(cudaMemsetAsync(part.Data() + 1, 0, 4, stream), "clearing");
    Check(cudaMemsetAsync(late.Data(), 0, size * 4, stream), "clearing");
    stream.Synchronize();
    EXPECT_EQ(all.Values(), std::vector<float>(size, 0.0f));
    EXPECT_EQ(late.Values(), std::vector<float>(size, 0.0f));
    const std::vector<float> got = part.Values();
    EXPECT_TRUE(std::isnan(got[0]) && got[1] == 0.0f && std::isnan(got[2]));
  }
}

TEST(Memory, TheCardIsFullAtItsSize) {
  std::size_t free = 0, total = 0;
  Check(cudaMemGetInfo(&free, &total), "asking for free memory");
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "asking for properties");
  EXPECT_EQ(total, properties.totalGlobalMem);
  void* most = nullptr;
  void* more = nullptr;
  Check(cudaMalloc(&most, free - 1000), "allocating most of the card");
  EXPECT_EQ(cudaMalloc(&more, 1001), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  std::size_t left = 0;
  Check(cudaMemGetInfo(&left, &total), "asking for free memory");
  EXPECT_EQ(left, 1000u);
  Check(cudaFree(most), "freeing");
  Check(cudaMemGetInfo(&left, &total), "asking for free memory");
  EXPECT_EQ(left, free);
}

TEST(Memory, CopiesThatCannotBeAreRefusedWithAReason) {
  const Stream stream;
  const Array<int> array(4);
  int host[8] = {};
  const auto refusal = [](auto call) {
    testing::internal::CaptureStderr();
    const cudaError_t code = call();
    cudaGetLastError();
    return std::to_string(static_cast<int>(code)) + " " + testing::internal::GetCapturedStderr();
  };
  using testing::internal::RE;
  EXPECT_TRUE(RE::PartialMatch(refusal([&] {
                                 return cudaMemcpyAsync(array.Data(), host, 16,
                                                        cudaMemcpyHostToDevice, stream);
                               }),
                               RE("^1 .*not page-locked")));
  EXPECT_TRUE(RE::PartialMatch(
      refusal([&] { return cudaMemcpy(array.Data(), host, 20, cudaMemcpyHostToDevice); }),
      RE("^1 .*1 rows of 20 bytes to outside a live allocation")));
  EXPECT_TRUE(RE::PartialMatch(
      refusal([&] { return cudaMemcpy(array.Data(), host, 16, cudaMemcpyDeviceToHost); }),
      RE("^1 .*kind of a copy")));
  EXPECT_TRUE(
      RE::PartialMatch(refusal([&] { return cudaMemsetAsync(array.Data() + 1, 0, 16, stream); }),
                       RE("^1 .*cudaMemset of 16 bytes outside")));
  EXPECT_TRUE(
      RE::PartialMatch(refusal([&] { return cudaMemsetAsync(array.Data(), 0, 16, nullptr); }),
                       RE("^400 .*legacy default stream")));
  EXPECT_TRUE(
      RE::PartialMatch(refusal([&] { return cudaFree(array.Data() + 1); }), RE("^1 .*cudaFree")));
}

TEST(Memory, RowsAreCopiedByTheirPitch) {
  const Stream stream;
  int* host = nullptr;
  Check(cudaMallocHost(&host, 12 * sizeof(int)), "page-locked memory");
  for (int i = 0; i < 12; ++i) host[i] = i;
  const Array<int> array(std::vector<int>(6, -1));
  // Two columns of a [4, 3] matrix into rows of one pitch of two, three rows of them.
  Check(cudaMemcpy2DAsync(array.Data(), 8, host + 1, 12, 8, 3, cudaMemcpyHostToDevice, stream),
        "copying rows");
  stream.Synchronize();
  EXPECT_EQ(array.Values(), (std::vector<int>{1, 2, 4, 5, 7, 8}));
  Check(cudaFreeHost(host), "freeing");
}

TEST(Memory, KindsOfPointersAreKnown) {
  const Array<int> array(4);
  int* pinned = nullptr;
  Check(cudaMallocHost(&pinned, 16), "page-locked memory");
  int host = 0;
  cudaPointerAttributes attributes;
  Check(cudaPointerGetAttributes(&attributes, array.Data() + 1), "asking");
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  Check(cudaPointerGetAttributes(&attributes, pinned), "asking");
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  Check(cudaPointerGetAttributes(&attributes, &host), "asking");
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_TRUE(emulator::IsDeviceMemory(array.Data(), 16));
  EXPECT_FALSE(emulator::IsDeviceMemory(array.Data(), 17));
  EXPECT_FALSE(emulator::IsDeviceMemory(pinned, 16));
  Check(cudaFreeHost(pinned), "freeing");
}

using MemoryDeathTest = EmulatorDeathTest;

__global__ void TouchKernel(float* data, long index, bool write) {
  if (write) {
    data[index] = 1;
  } else {
    static_cast<void>(*static_cast<volatile float*>(data + index));
  }
}

void Touch(std::size_t floats, long index, bool write) {
  const Stream stream;
  const Array<float> before(64), array(floats), after(64);
  Launch(stream, TouchKernel, dim3(1), dim3(1), 0, array.Data(), index, write);
  stream.Synchronize();
}

TEST_F(MemoryDeathTest, OffByOneIsReported) {
  EXPECT_EXIT(Touch(1024, 1024, true), testing::ExitedWithCode(kExitStatus),
              "overran an allocation of device memory of 4096 bytes: touched byte 4096");
  EXPECT_EXIT(Touch(4, 4, false), testing::ExitedWithCode(kExitStatus),
              "a kernel .* overran an allocation of device memory of 16 bytes");
  EXPECT_EXIT(Touch(1024, -1, false), testing::ExitedWithCode(kExitStatus),
              "touched 4 bytes before an allocation of device memory of 4096 bytes");
  // Within the last 16 bytes, and before data that begin within a page: found when it is freed.
  EXPECT_EXIT(Touch(1001, 1001, true), testing::ExitedWithCode(kExitStatus),
              "found at its free: an allocation of 4004 bytes was overrun");
  EXPECT_EXIT(Touch(1001, -1, true), testing::ExitedWithCode(kExitStatus),
              "bytes before an allocation of 4004 bytes were written");
  Touch(1024, 1023, true);
}

TEST_F(MemoryDeathTest, UseAfterFreeIsReported) {
  const auto run = [] {
    const Stream stream;
    auto array = std::make_unique<Array<float>>(8);
    float* data = array->Data();
    array.reset();
    Launch(stream, TouchKernel, dim3(1), dim3(1), 0, data, 3L, false);
    stream.Synchronize();
  };
  EXPECT_EXIT(
      run(), testing::ExitedWithCode(kExitStatus),
      "use after free: a kernel .* touched byte 12 of an allocation of device memory of 32");
}

TEST_F(MemoryDeathTest, HostAccessIsReported) {
  const auto run = [](bool write) {
    const Stream stream;
    const Array<float> array(8);
    Launch(stream, FillKernel, dim3(1), dim3(8), 0, array.Data(), 1.0f, 8);
    stream.Synchronize();
    volatile float* data = array.Data();
    if (write) {
      data[2] = 1;
    } else {
      static_cast<void>(data[2]);
    }
  };
  EXPECT_EXIT(run(false), testing::ExitedWithCode(kExitStatus),
              "host code touched device memory: byte 8 of an allocation of 32 bytes");
  EXPECT_EXIT(run(true), testing::ExitedWithCode(kExitStatus), "host code touched device memory");
}

TEST_F(MemoryDeathTest, HostPointersInKernelsAreReported) {
  const auto run = [] {
    const Stream stream;
    float host[8] = {};
    Launch(stream, FillKernel, dim3(1), dim3(8), 0, host, 1.0f, 8);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(kExitStatus),
              "pointer argument 0 of a kernel, 0x[0-9a-f]+, is no address of device memory");
}

TEST_F(MemoryDeathTest, PageLockedMemoryIsGuardedToo) {
  const auto run = [] {
    char* pinned = nullptr;
    Check(cudaMallocHost(&pinned, 4096), "page-locked memory");
    static_cast<volatile char*>(pinned)[4096] = 0;
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(kExitStatus),
              "host code overran page-locked memory of 4096 bytes");
}

}  // namespace
