// Threads of a block: barriers, shuffles, votes, shared memory, and that a kernel which lacks a
// barrier comes out wrong.
#include <cmath>
#include <numeric>
#include <set>

#include "emulator/mutation.hpp"
#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

constexpr float kEpsilon = 1e-5f;
constexpr double kTolerance = 1e-5;  // fp32, rows of a few hundred values near 3
constexpr int kKernelSeeds = 20;

enum class Omit { kNothing, kBarrierBehindWrite, kBarrierBehindRead };

// Sum over the block: shuffles within a warp, shared memory between warps.
template <Omit kOmit>
__device__ float BlockSum(float value, float* partial) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  if (kOmit != Omit::kBarrierBehindWrite) __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += partial[warp];
  if (kOmit != Omit::kBarrierBehindRead) __syncthreads();
  return sum;
}

// x, y: [gridDim.x, columns]
template <Omit kOmit>
__global__ void LayerNormKernel(const float* x, float* y, int columns) {
  __shared__ float partial[32];
  const float* from = x + static_cast<std::size_t>(blockIdx.x) * columns;
  float* to = y + static_cast<std::size_t>(blockIdx.x) * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += from[i];
  const float mean = BlockSum<kOmit>(sum, partial) / columns;
  float squares = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    squares += (from[i] - mean) * (from[i] - mean);
  }
  const float scale = rsqrtf(BlockSum<kOmit>(squares, partial) / columns + kEpsilon);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) to[i] = (from[i] - mean) * scale;
}

// Largest difference to the reference in fp64; infinite where anything is no number.
template <Omit kOmit>
double LayerNormError(unsigned long long seed) {
  constexpr int kRows = 5, kColumns = 333;
  emulator::SetSeed(seed);
  std::vector<float> x(kRows * kColumns);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 3.0f + std::sin(0.37f * static_cast<float>(i));
  }
  const Stream stream;
  const Array<float> from(x), to(x.size());
  Launch(stream, LayerNormKernel<kOmit>, dim3(kRows), dim3(128), 0, from.Data(), to.Data(),
         kColumns);
  stream.Synchronize();
  const std::vector<float> y = to.Values();
  double worst = 0;
  for (int row = 0; row < kRows; ++row) {
    const float* values = &x[static_cast<std::size_t>(row * kColumns)];
    const double mean = std::accumulate(values, values + kColumns, 0.0) / kColumns;
    double variance = 0;
    for (int i = 0; i < kColumns; ++i) variance += (values[i] - mean) * (values[i] - mean);
    const double scale = 1 / std::sqrt(variance / kColumns + kEpsilon);
    for (int i = 0; i < kColumns; ++i) {
      const auto got = static_cast<double>(y[static_cast<std::size_t>(row * kColumns + i)]);
      const double error = std::fabs(got - (values[i] - mean) * scale);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

template <Omit kOmit>
int SeedsThatCatch(int seeds) {
  int wrong = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    wrong += LayerNormError<kOmit>(static_cast<unsigned long long>(seed)) > kTolerance;
  }
  return wrong;
}

TEST(Kernel, LayerNormIsRightForEverySeed) {
  EXPECT_EQ(SeedsThatCatch<Omit::kNothing>(kKernelSeeds), 0);
}

TEST(Kernel, BarrierMissingBehindAWriteIsCaughtByEverySeed) {
  EXPECT_EQ(SeedsThatCatch<Omit::kBarrierBehindWrite>(kKernelSeeds), kKernelSeeds);
}

TEST(Kernel, BarrierMissingBehindAReadIsCaughtWithinTenSeeds) {
  const int caught = SeedsThatCatch<Omit::kBarrierBehindRead>(kKernelSeeds);
  RecordProperty("seeds_of_20_that_catch_it", caught);
  EXPECT_GT(SeedsThatCatch<Omit::kBarrierBehindRead>(10), 0) << caught << " of " << kKernelSeeds;
}

// Each barrier of the complete kernel, left out in turn: the block's last is not needed, since no
// block sees another's shared memory; all others are.
TEST(Kernel, BarriersLeftOutFromOutsideAreCaughtToo) {
  emulator::Omit(emulator::Mutation::kBarrier, -1);
  LayerNormError<Omit::kNothing>(1);
  const std::int64_t barriers = emulator::CountSince(emulator::Mutation::kBarrier);
  ASSERT_GE(barriers, 2);
  std::int64_t caught = 0;
  for (std::int64_t omitted = 0; omitted < barriers; ++omitted) {
    bool wrong = false;
    for (unsigned long long seed = 1; seed <= 10; ++seed) {
      emulator::Omit(emulator::Mutation::kBarrier, omitted);
      wrong = wrong || LayerNormError<Omit::kNothing>(seed) > kTolerance;
    }
    caught += wrong;
  }
  emulator::Omit(emulator::Mutation::kBarrier, -1);
  EXPECT_GE(caught, barriers - 1);
}

// out: [8, threads], what each lane got.
__global__ void ShuffleKernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const int n = static_cast<int>(blockDim.x);
  out[0 * n + lane] = __shfl_sync(0xffffffffu, 100 + lane, 5);
  out[1 * n + lane] = __shfl_sync(0xffffffffu, 100 + lane, 3, 8);
  out[2 * n + lane] = __shfl_up_sync(0xffffffffu, lane, 2);
  out[3 * n + lane] = __shfl_down_sync(0xffffffffu, lane, 3, 16);
  out[4 * n + lane] = __shfl_xor_sync(0xffffffffu, lane, 5);
  const double whole = __shfl_sync(0xffffffffu, 1e300 * (lane % 32), 2);
  out[5 * n + lane] = whole == 2e300;
  out[6 * n + lane] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
  out[7 * n + lane] = __any_sync(0xffffffffu, lane == 40) + 2 * __all_sync(0xffffffffu, lane < 40);
}

TEST(Kernel, ShufflesAndVotesAreAsOnTheDevice) {
  constexpr int kThreads = 64;
  const Stream stream;
  const Array<int> out(8 * kThreads);
  Launch(stream, ShuffleKernel, dim3(1), dim3(kThreads), 0, out.Data());
  stream.Synchronize();
  const std::vector<int> got = out.Values();
  for (int t = 0; t < kThreads; ++t) {
    const int lane = t % 32, warp = t - lane;
    const auto value = [&](int row) { return got[static_cast<std::size_t>(row * kThreads + t)]; };
    EXPECT_EQ(value(0), 100 + warp + 5);
    EXPECT_EQ(value(1), 100 + t / 8 * 8 + 3);
    EXPECT_EQ(value(2), lane < 2 ? t : t - 2);
    EXPECT_EQ(value(3), t % 16 < 13 ? t + 3 : t);
    EXPECT_EQ(value(4), t ^ 5);
    EXPECT_EQ(value(5), 1);
    unsigned votes = 0;
    for (int i = 0; i < 32; ++i) votes |= static_cast<unsigned>((warp + i) % 3 == 0) << i;
    EXPECT_EQ(static_cast<unsigned>(value(6)), votes);
    EXPECT_EQ(value(7), warp == 0 ? 2 : 1);
  }
}

// Halves of a warp meet apart; the last warp is not full, and some of its lanes return early.
__global__ void PartialWarpKernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  int sum = lane;
  for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(half, sum, distance);
  if (threadIdx.x == 35) return;
  __syncthreads();
  out[threadIdx.x] = sum + 1000 * static_cast<int>(__popc(__ballot_sync(0xffffffffu, 1)));
}

TEST(Kernel, PartsOfAWarpMeetApartAndThreadsThatReturnedAreNotAwaited) {
  constexpr int kThreads = 48;
  for (unsigned long long seed = 1; seed <= 5; ++seed) {
    emulator::SetSeed(seed);
    const Stream stream;
    const Array<int> out(std::vector<int>(kThreads, -1));
    Launch(stream, PartialWarpKernel, dim3(1), dim3(kThreads), 0, out.Data());
    stream.Synchronize();
    const std::vector<int> got = out.Values();
    for (int t = 0; t < kThreads; ++t) {
      const int sum = t % 32 < 16 ? 120 : 376;
      const int expected = t == 35 ? -1 : sum + 1000 * (t < 32 ? 32 : 15);
      EXPECT_EQ(got[static_cast<std::size_t>(t)], expected) << t;
    }
  }
}

// Place that each block and thread believes to have; how often each ran.
__global__ void PlaceKernel(int* count, unsigned* last) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  atomicAdd(&count[block * blockDim.x * blockDim.y * blockDim.z + thread], 1);
  atomicMax(last, block);
}

TEST(Kernel, EveryThreadOfAThreeDimensionalGridRunsOnce) {
  const dim3 blocks(3, 5, 2), threads(4, 3, 2);
  constexpr int kCount = 30 * 24;
  const Stream stream;
  const Array<int> count(std::vector<int>(kCount, 0));
  const Array<unsigned> last(std::vector<unsigned>(1, 0));
  Launch(stream, PlaceKernel, blocks, threads, 0, count.Data(), last.Data());
  stream.Synchronize();
  EXPECT_EQ(count.Values(), std::vector<int>(kCount, 1));
  EXPECT_EQ(last.Values()[0], 29u);
}

__global__ void OrderKernel(unsigned* ticket, unsigned* order) {
  order[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(ticket, 1u);
}

TEST(Kernel, SeedsGiveDifferentOrdersAndTheSameSeedTheSame) {
  const auto order = [](unsigned long long seed) {
    const Stream stream;
    const Array<unsigned> ticket(std::vector<unsigned>(1, 0)), out(4 * 64);
    emulator::SetSeed(seed);
    Launch(stream, OrderKernel, dim3(4), dim3(64), 0, ticket.Data(), out.Data());
    stream.Synchronize();
    return out.Values();
  };
  std::set<std::vector<unsigned>> orders;
  for (unsigned long long seed = 1; seed <= 8; ++seed) orders.insert(order(seed));
  EXPECT_EQ(orders.size(), 8u);
  EXPECT_EQ(order(3), order(3));
}

template <typename T>
__global__ void UninitialisedKernel(T* out) {
  __shared__ T fixed[64];
  out[blockIdx.x * 64 + threadIdx.x] = SharedMemory<T>()[threadIdx.x];
  out[(gridDim.x + blockIdx.x) * 64 + threadIdx.x] = fixed[threadIdx.x];
  __syncthreads();
  fixed[threadIdx.x] = 1;
  SharedMemory<T>()[threadIdx.x] = 1;
}

TEST(Kernel, SharedMemoryStartsAsNanInEveryBlock) {
  const Stream stream;
  const Array<float> out(2 * 3 * 64);
  Launch(stream, UninitialisedKernel<float>, dim3(3), dim3(64), 64 * sizeof(float), out.Data());
  stream.Synchronize();
  for (const float value : out.Values()) EXPECT_TRUE(std::isnan(value));
}

__global__ void AlignmentKernel(int* out) {
  out[threadIdx.x] = reinterpret_cast<std::uintptr_t>(SharedMemory<float>()) % 128 == 0;
}

TEST(Kernel, DynamicSharedMemoryIsAlignedAndLimited) {
  const Stream stream;
  const Array<int> out(1);
  for (const std::size_t bytes : {1, 100, 4097, 48 * 1024}) {
    Launch(stream, AlignmentKernel, dim3(1), dim3(1), bytes, out.Data());
    stream.Synchronize();
    EXPECT_EQ(out.Values()[0], 1);
  }
  testing::internal::CaptureStderr();
  // Requests of Launch above 48 KiB are refused beyond a block's most.
  EXPECT_ANY_THROW(Launch(stream, AlignmentKernel, dim3(1), dim3(1), 228 * 1024, out.Data()));
  EXPECT_EQ(cudaFuncSetAttribute(AlignmentKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 228 * 1024),
            cudaErrorInvalidValue);
  EXPECT_FALSE(testing::internal::GetCapturedStderr().empty());
  Check(cudaFuncSetAttribute(AlignmentKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             227 * 1024),
        "asking for shared memory");
  Launch(stream, AlignmentKernel, dim3(1), dim3(1), 227 * 1024, out.Data());
  stream.Synchronize();
}

__global__ void OneOfManyBytesKernel(int* out) { *out = 1; }
__global__ void OtherOfManyBytesKernel(int* out) { *out = 2; }

// Launch asks once for a kernel on a card, and again for more. An allowance that is taken back
// behind its back shows whether it asks.
TEST(Kernel, SharedMemoryIsAskedForOnceOnEachCard) {
  constexpr int kSome = 100 << 10, kMore = 120 << 10, kFew = 50 << 10;
  const auto set = [](int bytes) {
    Check(cudaFuncSetAttribute(OneOfManyBytesKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               bytes),
          "setting what is allowed");
  };
  const auto launches = [](void (*kernel)(int*), std::size_t bytes) {
    const Stream stream;
    const Array<int> out(1);
    testing::internal::CaptureStderr();
    bool refused = false;
    try {
      Launch(stream, kernel, dim3(1), dim3(1), bytes, out.Data());
    } catch (const std::exception&) {
      refused = true;
    }
    stream.Synchronize();
    testing::internal::GetCapturedStderr();
    cudaGetLastError();
    return !refused;
  };
  int cards = 0;
  Check(cudaGetDeviceCount(&cards), "counting cards");
  ASSERT_GE(cards, 2);
  for (int card = 0; card < 2; ++card) {
    Check(cudaSetDevice(card), "choosing a card");
    EXPECT_TRUE(launches(OneOfManyBytesKernel, kSome)) << card;
    set(kFew);
    EXPECT_FALSE(launches(OneOfManyBytesKernel, kSome)) << card;
    EXPECT_TRUE(launches(OtherOfManyBytesKernel, kSome)) << card;
    EXPECT_TRUE(launches(OneOfManyBytesKernel, kMore)) << card;
    set(kFew);
    EXPECT_FALSE(launches(OneOfManyBytesKernel, kMore)) << card;
  }
  Check(cudaSetDevice(0), "choosing a card");
}

TEST(Kernel, ImpossibleShapesAreRefused) {
  const Stream stream;
  const Array<float> y(1);
  cudaGetLastError();
  testing::internal::CaptureStderr();
  EXPECT_ANY_THROW(Launch(stream, FillKernel, dim3(0), dim3(32), 0, y.Data(), 1.0f, 1));
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_ANY_THROW(Launch(stream, FillKernel, dim3(1), dim3(64, 17), 0, y.Data(), 1.0f, 1));
  EXPECT_ANY_THROW(Launch(stream, FillKernel, dim3(1, 65536), dim3(1), 0, y.Data(), 1.0f, 1));
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
  cudaGetLastError();
}

}  // namespace
