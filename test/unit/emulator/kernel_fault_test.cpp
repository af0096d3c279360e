// Kernels that a GPU would not forgive end with a message: deadlocks, wrong masks, overruns of
// shared memory and of a thread's stack.
#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

using KernelDeathTest = EmulatorDeathTest;

__global__ void DeadlockKernel() {
  if (threadIdx.x < 20) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

TEST_F(KernelDeathTest, ThreadsThatWaitForEachOtherForEverAreReported) {
  const auto run = [] {
    const Stream stream;
    Launch(stream, DeadlockKernel, dim3(1), dim3(32), 0);
    stream.Synchronize();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(kExitStatus),
              "deadlock in kernel: 20 threads at __syncthreads, 12 at __syncwarp");
}

__global__ void MaskKernel(int kind) {
  const unsigned lane = threadIdx.x;
  if (kind == 0) __syncwarp(lane < 16 ? 0xffffffffu : 0xffff0000u);
  if (kind == 1) __syncwarp(0x0000ffffu);
  if (kind == 2) lane < 7 ? __syncwarp() : static_cast<void>(__ballot_sync(0xffffffffu, 1));
}

TEST_F(KernelDeathTest, WrongMasksAreReported) {
  const auto run = [](int kind) {
    const Stream stream;
    Launch(stream, MaskKernel, dim3(1), dim3(32), 0, kind);
    stream.Synchronize();
  };
  EXPECT_EXIT(run(0), testing::ExitedWithCode(kExitStatus), "mismatched masks in a warp");
  EXPECT_EXIT(run(1), testing::ExitedWithCode(kExitStatus), "which does not name it");
  EXPECT_EXIT(run(2), testing::ExitedWithCode(kExitStatus), "meet in different operations");
}

__global__ void SharedOverrunKernel(int count) {
  for (int i = 0; i < count; ++i) SharedMemory<float>()[i] = 0;
}

TEST_F(KernelDeathTest, OverrunOfDynamicSharedMemoryIsReported) {
  const auto run = [](int count) {
    const Stream stream;
    Launch(stream, SharedOverrunKernel, dim3(1), dim3(1), 100 * sizeof(float), count);
    stream.Synchronize();
  };
  EXPECT_EXIT(run(101), testing::ExitedWithCode(kExitStatus),
              "overran its 400 bytes of dynamic shared memory: byte 400");
  EXPECT_EXIT(run(1000), testing::ExitedWithCode(kExitStatus), "shared memory");
  run(100);
}

__device__ int Dive(int depth) {
  volatile char frame[4096];
  frame[depth % 4096] = static_cast<char>(depth);
  return depth == 0 ? frame[0] : Dive(depth - 1) + frame[depth % 4096];
}
__global__ void DeepKernel(int depth) {
  __syncthreads();
  Dive(depth);
}

TEST_F(KernelDeathTest, OverflowOfAThreadsStackIsReported) {
  const auto run = [] {
    const Stream stream;
    Launch(stream, DeepKernel, dim3(1), dim3(2), 0, 1000);
    stream.Synchronize();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(kExitStatus), "overflowed a thread's stack");
}

}  // namespace
