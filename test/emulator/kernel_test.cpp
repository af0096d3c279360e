// Kernels in the emulator: threads of a block, tensor cores, numbers, and what a GPU would not
// forgive.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "emulator/kernel.hpp"
#include "emulator/settings.hpp"
#include "emulator_testing.hpp"
#include "trireme/device/cuda/matrix.cuh"

namespace {

using namespace emulator_test;
using namespace trireme::device::cuda;

// Threads of a block: barriers, shuffles, votes, shared memory, and that a kernel which lacks a
// barrier comes out wrong.

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

// bf16 and fp8 of the emulator against definitions that share nothing with them; cards.

float FromBits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// The bf16 nearest to x by distance alone, ties to the one with an even last bit.
std::uint16_t NearestBfloat16(float x) {
  const auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  const auto high = static_cast<std::uint16_t>(low + 1);
  const double exact = static_cast<double>(x);
  const auto value = [](std::uint16_t bits) {
    // Infinity counts as the number that would come next.
    return (bits & 0x7fff) == 0x7f80
               ? std::copysign(std::ldexp(1.0, 128), (bits & 0x8000) != 0 ? -1.0 : 1.0)
               : static_cast<double>(FromBits(std::uint32_t{bits} << 16));
  };
  const double below = std::fabs(exact - value(low)), above = std::fabs(value(high) - exact);
  if (below == above) return low % 2 == 0 ? low : high;
  return below < above ? low : high;
}

TEST(Numbers, Bfloat16RoundsToNearestEven) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    for (const std::uint32_t rest : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = FromBits((pattern << 16) | rest);
      const __nv_bfloat16 rounded = __float2bfloat16(x);
      if (std::isnan(x)) {
        ASSERT_EQ(rounded.bits, 0x7fff);
      } else if (std::isinf(x)) {
        ASSERT_EQ(rounded.bits, pattern);
      } else {
        ASSERT_EQ(rounded.bits, NearestBfloat16(x)) << std::hex << pattern << " " << rest;
      }
    }
    const __nv_bfloat16 same = __ushort_as_bfloat16(static_cast<unsigned short>(pattern));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(__bfloat162float(same)), pattern << 16);
  }
}

TEST(Numbers, Bfloat16PairsKeepTheirOrder) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(1.5f, -2.0f);
  EXPECT_EQ(__low2float(pair), 1.5f);
  EXPECT_EQ(__high2float(pair), -2.0f);
  EXPECT_EQ(__bfloat1622float2(pair).y, -2.0f);
  EXPECT_EQ(sizeof(pair), 4u);
  EXPECT_EQ(static_cast<float>(pair.x * pair.y), -3.0f);
  EXPECT_EQ(static_cast<float>(-pair.y), 2.0f);
}

// By search over all finite codes: nearest, ties to even; beyond the largest, the largest.
int NearestFp8(float x, __nv_fp8_interpretation_t kind) {
  const double size = std::min(std::fabs(static_cast<double>(x)), 1e6);  // distances stay exact
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double value =
        static_cast<double>(emulator::FromFp8(static_cast<unsigned char>(code), kind));
    if (!std::isfinite(value)) continue;
    const double distance = std::fabs(size - value);
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = code;
    }
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

TEST(Numbers, Fp8RoundsToNearestEvenAndSaturates) {
  for (const auto kind : {__NV_E4M3, __NV_E5M2}) {
    for (std::uint32_t pattern = 0; pattern < 65536; pattern += 3) {
      const float x = FromBits(pattern << 16);
      const int code = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(emulator::FromFp8(static_cast<unsigned char>(code), kind)));
      } else {
        ASSERT_EQ(code, NearestFp8(x, kind)) << x;
      }
    }
    for (int code = 0; code < 256; ++code) {  // there and back
      const float value = emulator::FromFp8(static_cast<unsigned char>(code), kind);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, kind), code);
    }
  }
}

TEST(Numbers, Fp8KnownValues) {
  EXPECT_EQ(static_cast<float>(__nv_fp8_e4m3(1000.0f)), 448.0f);
  EXPECT_EQ(static_cast<float>(__nv_fp8_e5m2(-1e9f)), -57344.0f);
  EXPECT_EQ(__nv_fp8_e4m3(1.0f).__x, 0x38);
  EXPECT_EQ(__nv_fp8_e5m2(1.0f).__x, 0x3c);
  EXPECT_EQ(static_cast<float>(__nv_fp8_e4m3(std::ldexp(1.0f, -9))), std::ldexp(1.0f, -9));
  EXPECT_EQ(static_cast<float>(__nv_fp8_e5m2(std::ldexp(1.0f, -17))), 0.0f);
  EXPECT_EQ(__nv_cvt_float_to_fp8(INFINITY, __NV_NOSAT, __NV_E5M2), 0x7c);
  EXPECT_EQ(__nv_cvt_float_to_fp8(500.0f, __NV_NOSAT, __NV_E4M3), 0x7f);
}

TEST(Cards, AreThoseOfTheEnvironment) {
  int count = 0;
  Check(cudaGetDeviceCount(&count), "counting");
  EXPECT_EQ(count, 8);
  Check(cudaSetDevice(count - 1), "choosing");
  int device = -1;
  Check(cudaGetDevice(&device), "asking");
  EXPECT_EQ(device, count - 1);
  EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  EXPECT_STREQ(cudaGetErrorName(cudaGetLastError()), "cudaErrorInvalidDevice");
  Check(cudaSetDevice(0), "choosing");
  char bus[16];
  Check(cudaDeviceGetPCIBusId(bus, sizeof(bus), 3), "asking");
  EXPECT_STREQ(bus, "0000:04:00.0");
  int shared = 0;
  Check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "asking");
  EXPECT_EQ(shared, 227 * 1024);
}

using CardsDeathTest = EmulatorDeathTest;

TEST_F(CardsDeathTest, TheEnvironmentChoosesAmongThem) {
  const auto run = [](const char* visible) {
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    setenv("TRIREME_EMULATOR_DEVICES", "4", 1);
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    cudaDeviceProp first{};
    if (count > 0) cudaGetDeviceProperties(&first, 0);
    std::exit(code == cudaErrorNoDevice ? 99 : 10 * count + first.pciBusID);
  };
  EXPECT_EXIT(run("2,0"), testing::ExitedWithCode(23), "");
  EXPECT_EXIT(run("1,9,2"), testing::ExitedWithCode(12), "");
  EXPECT_EXIT(run(""), testing::ExitedWithCode(99), "");
}

// Tensor cores and copies beside the thread: products against a plain loop, bank conflicts, and
// that a missing wait or a swapped operand shows.

constexpr int kRows = 16, kInner = 16, kColumns = 8, kPiece = 8;

enum class Fault { kNone, kSwapped, kNoWait };

// y [16, 8] = x [16, 16] w^T, w [8, 16], each row in two pieces; rows of shared memory are `row`
// elements apart. kTransposed: w is [16, 8], and y = x w.
template <Fault kFault, bool kTransposed>
__global__ void ProductKernel(const __nv_bfloat16* x, const __nv_bfloat16* w, float* y, int row) {
  auto* const shared = static_cast<__nv_bfloat16*>(emulator::DynamicSharedMemory());
  __nv_bfloat16* const other = shared + kRows * row;
  const int lane = static_cast<int>(threadIdx.x);
  CopyAsync(shared + lane / 2 * row + lane % 2 * kPiece, x + lane * kPiece, true);
  const int pieces = kTransposed ? 1 : 2;
  if (lane < 16) {
    CopyAsync(other + lane / pieces * row + lane % pieces * kPiece, w + lane * kPiece, true);
  }
  CommitCopies();
  if (kFault != Fault::kNoWait) WaitForCopies<0>();
  __syncwarp();
  unsigned a[4], b[4];
  LoadMatrices(shared + lane % 16 * row + lane / 16 * kPiece, a);
  if (kTransposed) {
    LoadMatricesTransposed(other + lane % 16 * row, b);
  } else {
    LoadMatrices(other + lane % 8 * row + lane / 8 % 2 * kPiece, b);
  }
  float d[4] = {};
  if (kFault == Fault::kSwapped) std::swap(a[1], a[2]);
  MultiplyMatrices(a, b[0], b[1], d);
  for (int i = 0; i < 4; ++i) y[(lane / 4 + i / 2 * 8) * kColumns + lane % 4 * 2 + i % 2] = d[i];
  if (kFault == Fault::kNoWait) WaitForCopies<0>();
}

std::vector<__nv_bfloat16> Numbers(int count, int factor) {
  std::vector<__nv_bfloat16> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i * factor % 23 - 11));
  return values;
}

// Largest difference to the plain product; infinite where anything is no number.
template <Fault kFault, bool kTransposed>
double ProductError(int row) {
  const auto x = Numbers(kRows * kInner, 7), w = Numbers(kInner * kColumns, 5);
  const Stream stream;
  const Array<__nv_bfloat16> left(x), right(w);
  const Array<float> product(kRows * kColumns);
  Launch(stream, ProductKernel<kFault, kTransposed>, dim3(1), dim3(32),
         static_cast<std::size_t>(2 * kRows * row) * sizeof(__nv_bfloat16), left.Data(),
         right.Data(), product.Data(), row);
  stream.Synchronize();
  const std::vector<float> y = product.Values();
  double worst = 0;
  for (int i = 0; i < kRows * kColumns; ++i) {
    float sum = 0;
    for (int k = 0; k < kInner; ++k) {
      const int column = i % kColumns;
      const int at = kTransposed ? k * kColumns + column : column * kInner + k;
      sum += static_cast<float>(x[static_cast<std::size_t>(i / kColumns * kInner + k)]) *
             static_cast<float>(w[static_cast<std::size_t>(at)]);
    }
    const double error = std::fabs(y[static_cast<std::size_t>(i)] - sum);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

TEST(EmulatedMatrices, ProductsAreThoseOfAPlainLoop) {
  EXPECT_EQ((ProductError<Fault::kNone, false>(16)), 0);
  EXPECT_EQ((ProductError<Fault::kNone, true>(16)), 0);
}

TEST(EmulatedMatrices, ASwappedOperandShows) {
  EXPECT_GT((ProductError<Fault::kSwapped, false>(16)), 1);
}

TEST(EmulatedMatrices, AMissingWaitShows) {
  EXPECT_EQ((ProductError<Fault::kNoWait, false>(16)), INFINITY);
  emulator::Omit(emulator::Mutation::kCopyWait, 0);
  EXPECT_DEATH((ProductError<Fault::kNone, false>(16)),
               "ends with . copies to shared memory under way");
  emulator::Omit(emulator::Mutation::kCopyWait, -1);
}

// Rows 32 bytes apart meet in a bank every fourth row, rows of 144 bytes nowhere.
TEST(EmulatedMatrices, BankConflictsAreCounted) {
  const auto more = [](int row) {
    const std::int64_t before = emulator::CountedMatrixLoads().more;
    ProductError<Fault::kNone, false>(row);
    return emulator::CountedMatrixLoads().more - before;
  };
  EXPECT_EQ(more(16), 8);
  EXPECT_EQ(more(72), 0);
}

__global__ void CrookedKernel(float* y) {
  auto* const shared = static_cast<char*>(emulator::DynamicSharedMemory());
  unsigned a[4];
  LoadMatrices(shared + 8, a);
  y[0] = static_cast<float>(a[0]);
}

TEST(EmulatedMatrices, RowsOnOtherBoundariesAreRefused) {
  const auto run = [] {
    const Stream stream;
    const Array<float> y(1);
    Launch(stream, CrookedKernel, dim3(1), dim3(32), 256, y.Data());
    stream.Synchronize();
  };
  EXPECT_DEATH(run(), "not on a boundary of 16 bytes");
}

// Kernels that a GPU would not forgive end with a message: deadlocks, wrong masks, overruns of
// shared memory and of a thread's stack.

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
