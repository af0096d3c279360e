// Accesses that a card refuses and a CPU allows, compiled with the checks of the program's kernels.
#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

using CheckedKernelDeathTest = EmulatorDeathTest;

__global__ void StoreVectorKernel(float* x) {
  *reinterpret_cast<float4*>(x) = make_float4(1, 2, 3, 4);
}

TEST_F(CheckedKernelDeathTest, AVectorThatIsNotAlignedIsReported) {
  const auto run = [](int offset) {
    const Stream stream;
    const Array<float> x(12);
    Launch(stream, StoreVectorKernel, dim3(1), dim3(2), 0, x.Data() + offset);
    stream.Synchronize();
  };
  // Clang does not check copies of structures: there the processor's instruction fails.
  EXPECT_DEATH(run(2), "misaligned address .* which requires 16 byte alignment|not aligned to");
  run(4);
}

__global__ void RegistersKernel(float* x, int count) {
  float registers[4] = {};
  for (int i = 0; i < count; ++i) registers[i] = x[threadIdx.x] + static_cast<float>(i);
  __syncthreads();
  float sum = 0;
  for (const float each : registers) sum += each;
  x[threadIdx.x] = sum;
}

TEST_F(CheckedKernelDeathTest, AnIndexBeyondRegistersIsReported) {
  const auto run = [](int count) {
    const Stream stream;
    const Array<float> x(std::vector<float>(2, 1.0f));
    Launch(stream, RegistersKernel, dim3(1), dim3(2), 0, x.Data(), count);
    stream.Synchronize();
    return x.Values();
  };
  EXPECT_DEATH(run(5), "index 4 out of bounds for type 'float");
  EXPECT_EQ(run(4), std::vector<float>(2, 10.0f));
}

}  // namespace
