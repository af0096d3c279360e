// Streams, graphs and memory in the emulator.
#include <cublasLt.h>
#include <gmock/gmock.h>
#include <mpi.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>

#include "emulator/settings.hpp"
#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

// Streams run late and in any order that events allow: what lacks a wait comes out wrong.

constexpr int kSize = 300;
constexpr int kStreamSeeds = 20;

// One stream fills, another adds; with the event between them the sum is 3 everywhere.
bool SumIsRight(bool wait, unsigned long long seed) {
  emulator::SetSeed(seed);
  const Stream first, second;
  const Event filled(cudaEventDisableTiming);
  const Array<float> x(std::vector<float>(kSize, 0.0f)), y(std::vector<float>(kSize, 1.0f));
  Launch(first, FillKernel, dim3(2), dim3(256), 0, x.Data(), 2.0f, kSize);
  Check(cudaEventRecord(filled, first), "recording");
  if (wait) Check(cudaStreamWaitEvent(second, filled, 0), "waiting");
  Launch(second, AddKernel, dim3(2), dim3(256), 0, x.Data(), y.Data(), kSize);
  second.Synchronize();
  return y.Values() == std::vector<float>(kSize, 3.0f);
}

TEST(Streams, AnEventOrdersThem) {
  for (unsigned long long seed = 1; seed <= kStreamSeeds; ++seed)
    EXPECT_TRUE(SumIsRight(true, seed));
}

TEST(Streams, AMissingWaitIsCaught) {
  int caught = 0;
  for (unsigned long long seed = 1; seed <= kStreamSeeds; ++seed)
    caught += !SumIsRight(false, seed);
  RecordProperty("seeds_of_20_that_catch_it", caught);
  EXPECT_FALSE(SumIsRight(false, 1));
  EXPECT_GT(caught, kStreamSeeds / 2);
}

TEST(Streams, AWaitLeftOutFromOutsideIsCaught) {
  emulator::Omit(emulator::Mutation::kWait, 0);
  EXPECT_FALSE(SumIsRight(true, 1));
  EXPECT_EQ(emulator::CountSince(emulator::Mutation::kWait), 1);
  emulator::Omit(emulator::Mutation::kWait, -1);
  EXPECT_TRUE(SumIsRight(true, 1));
}

// No work is queued any more: a wait left out shows while the host waits for the other stream.
TEST(Streams, OthersGetAheadWhileOneIsAwaited) {
  int caught = 0;
  for (unsigned long long seed = 1; seed <= kStreamSeeds; ++seed) {
    emulator::SetSeed(seed);
    const Stream first, second;
    const Array<float> x(std::vector<float>(1, 0.0f)), y(std::vector<float>(1, 0.0f));
    for (int i = 1; i <= 8; ++i) {
      Launch(first, FillKernel, dim3(1), dim3(1), 0, x.Data(), static_cast<float>(i), 1);
    }
    Launch(second, AddKernel, dim3(1), dim3(1), 0, x.Data(), y.Data(), 1);
    first.Synchronize();
    second.Synchronize();
    EXPECT_EQ(x.Values()[0], 8.0f);
    caught += y.Values()[0] != 8.0f;
    const bool lazy = seed % 4 == 1;
    EXPECT_TRUE(!lazy || y.Values()[0] == 8.0f) << seed;
  }
  EXPECT_GT(caught, kStreamSeeds / 3);
}

// The second stream overwrites what the first has yet to read.
bool ReadBeforeOverwritten(bool wait, unsigned long long seed) {
  emulator::SetSeed(seed);
  const Stream reader, writer;
  const Event read(cudaEventDisableTiming);
  const Array<float> x(std::vector<float>(kSize, 2.0f)), y(std::vector<float>(kSize, 1.0f));
  Launch(reader, AddKernel, dim3(2), dim3(256), 0, x.Data(), y.Data(), kSize);
  Check(cudaEventRecord(read, reader), "recording");
  if (wait) Check(cudaStreamWaitEvent(writer, read, 0), "waiting");
  Launch(writer, FillKernel, dim3(2), dim3(256), 0, x.Data(), 7.0f, kSize);
  writer.Synchronize();
  reader.Synchronize();
  return y.Values() == std::vector<float>(kSize, 3.0f);
}

TEST(Streams, AnOverwriteTooEarlyIsCaught) {
  int caught = 0;
  for (unsigned long long seed = 1; seed <= kStreamSeeds; ++seed) {
    EXPECT_TRUE(ReadBeforeOverwritten(true, seed));
    caught += !ReadBeforeOverwritten(false, seed);
  }
  EXPECT_GT(caught, kStreamSeeds / 2);
}

TEST(Streams, NothingRunsBeforeItIsAwaitedAndCopiesTakeWhatIsThereThen) {
  emulator::SetSeed(1);
  const Stream stream;
  float* host = nullptr;
  Check(cudaMallocHost(&host, sizeof(float)), "page-locked memory");
  const Array<float> x(std::vector<float>(1, 0.0f));
  *host = 1;
  Check(cudaMemcpyAsync(x.Data(), host, sizeof(float), cudaMemcpyHostToDevice, stream), "copying");
  EXPECT_EQ(x.Values()[0], 0.0f);
  *host = 2;
  stream.Synchronize();
  EXPECT_EQ(x.Values()[0], 2.0f);
  Launch(stream, FillKernel, dim3(1), dim3(1), 0, x.Data(), 5.0f, 1);
  Check(cudaMemcpyAsync(host, x.Data(), sizeof(float), cudaMemcpyDeviceToHost, stream), "copying");
  EXPECT_EQ(*host, 2.0f);
  stream.Synchronize();
  EXPECT_EQ(*host, 5.0f);
  Check(cudaFreeHost(host), "freeing");
}

TEST(Streams, WaitingForOneRunsWhatItNeedsAndNoMore) {
  emulator::SetSeed(1);
  const Stream first, second, third;
  const Event event(cudaEventDisableTiming);
  const Array<float> x(std::vector<float>(1, 0.0f)), y(std::vector<float>(1, 0.0f)),
      z(std::vector<float>(1, 0.0f));
  Launch(first, FillKernel, dim3(1), dim3(1), 0, x.Data(), 1.0f, 1);
  Check(cudaEventRecord(event, first), "recording");
  Launch(first, FillKernel, dim3(1), dim3(1), 0, x.Data(), 2.0f, 1);
  Launch(third, FillKernel, dim3(1), dim3(1), 0, z.Data(), 9.0f, 1);
  Check(cudaStreamWaitEvent(second, event, 0), "waiting");
  Launch(second, AddKernel, dim3(1), dim3(1), 0, x.Data(), y.Data(), 1);
  second.Synchronize();
  EXPECT_EQ(y.Values()[0], 1.0f);
  EXPECT_EQ(x.Values()[0], 1.0f);
  EXPECT_EQ(z.Values()[0], 0.0f);
  Check(cudaDeviceSynchronize(), "waiting for all");
  EXPECT_EQ(x.Values()[0], 2.0f);
  EXPECT_EQ(z.Values()[0], 9.0f);
}

TEST(Streams, QueriesGetThereInTheEnd) {
  for (unsigned long long seed = 1; seed <= 4; ++seed) {
    emulator::SetSeed(seed);
    const Stream stream;
    const Event event;
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
    const Array<float> x(1);
    for (int i = 0; i < 20; ++i) {
      Launch(stream, FillKernel, dim3(1), dim3(1), 0, x.Data(), 1.0f, 1);
    }
    Check(cudaEventRecord(event, stream), "recording");
    Launch(stream, FillKernel, dim3(1), dim3(1), 0, x.Data(), 2.0f, 1);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    int queries = 0;
    while (cudaEventQuery(event) != cudaSuccess) ASSERT_LT(++queries, 30);
    while (cudaStreamQuery(stream) != cudaSuccess) ASSERT_LT(++queries, 40);
    EXPECT_EQ(x.Values()[0], 2.0f);
    cudaGetLastError();
  }
}

TEST(Streams, TimesOfEvents) {
  const Stream stream;
  const Event start, end, untimed(cudaEventDisableTiming);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle);
  Check(cudaEventRecord(start, stream), "recording");
  const Array<float> x(100000);
  Launch(stream, FillKernel, dim3(100), dim3(1000), 0, x.Data(), 1.0f, 100000);
  Check(cudaEventRecord(end, stream), "recording");
  Check(cudaEventRecord(untimed, stream), "recording");
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
  Check(cudaEventSynchronize(end), "waiting");
  Check(cudaEventElapsedTime(&milliseconds, start, end), "time");
  EXPECT_GT(milliseconds, 0.0f);
  EXPECT_LT(milliseconds, 1e4f);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, untimed), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST(Streams, OperationsArePolledWhileOthersRun) {
  for (unsigned long long seed = 1; seed <= 4; ++seed) {
    emulator::SetSeed(seed);
    const Stream first, second;
    // Each waits for the other's progress, as transfers of two groups may.
    auto calls = std::make_shared<int>(0);
    auto arrived = std::make_shared<bool>(false);
    Check(emulator::Enqueue(first, [=] { return ++*calls > 3 && *arrived; }), "queueing");
    Check(emulator::Enqueue(second, [=] { return *calls > 1 ? (*arrived = true) : false; }),
          "queueing");
    first.Synchronize();
    EXPECT_TRUE(*arrived);
    EXPECT_GT(*calls, 3);
  }
}

TEST(Streams, WorkOfADestroyedStreamIsDoneAllTheSame) {
  const Array<float> x(std::vector<float>(1, 0.0f));
  const Event event;
  {
    const Stream stream;
    Launch(stream, FillKernel, dim3(1), dim3(1), 0, x.Data(), 4.0f, 1);
    Check(cudaEventRecord(event, stream), "recording");
  }
  Check(cudaEventSynchronize(event), "waiting");
  EXPECT_EQ(x.Values()[0], 4.0f);
}

TEST(Streams, TheDefaultStreamAndBlockingStreamsAreRefused) {
  cudaStream_t stream = nullptr;
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamDefault), cudaErrorInvalidValue);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("legacy default stream"), std::string::npos);
  EXPECT_NE(text.find("cudaStreamNonBlocking"), std::string::npos);
  EXPECT_EQ(stream, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(Streams, ClearedMemoryIsNotThereForOtherStreamsBeforeItIsAwaited) {
  emulator::SetSeed(1);
  const Stream stream;
  const Array<float> x(1), y(std::vector<float>(1, 1.0f));
  Check(cudaMemset(x.Data(), 0, sizeof(float)), "clearing");
  Launch(stream, AddKernel, dim3(1), dim3(1), 0, x.Data(), y.Data(), 1);
  stream.Synchronize();
  EXPECT_TRUE(std::isnan(y.Values()[0]));
}

// Device memory: guards, closed while host code runs, never used again; copies; the card's size.

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

// Capture and replay: what streams are given becomes a graph with the order that streams and events
// say, and no other.

// Ends a capture; the graph, ready to launch, and how many nodes it has.
class Recorded {
 public:
  explicit Recorded(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    Check(cudaStreamEndCapture(stream, &graph), "ending a capture");
    Check(cudaGraphGetNodes(graph, nullptr, &nodes_), "counting nodes");
    Check(cudaGraphInstantiate(&graph_, graph), "instantiating");
    Check(cudaGraphDestroy(graph), "destroying");
  }
  ~Recorded() { cudaGraphExecDestroy(graph_); }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  std::size_t Nodes() const { return nodes_; }
  void Launch(cudaStream_t stream) const { Check(cudaGraphLaunch(graph_, stream), "launching"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
  std::size_t nodes_ = 0;
};

void Begin(cudaStream_t stream) {
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
}

void Fill(cudaStream_t stream, const Array<float>& x, float value) {
  Launch(stream, FillKernel, dim3(1), dim3(1), 0, x.Data(), value, 1);
}
void Add(cudaStream_t stream, const Array<float>& x, const Array<float>& y) {
  Launch(stream, AddKernel, dim3(1), dim3(1), 0, x.Data(), y.Data(), 1);
}

TEST(Graphs, NothingRunsDuringCaptureAndAllOfItAtEachLaunch) {
  const Stream stream;
  const Array<float> x(std::vector<float>(1, 0.0f)), y(std::vector<float>(1, 0.0f));
  Begin(stream);
  EXPECT_TRUE(emulator::IsCapturing(stream));
  Fill(stream, x, 2);
  Add(stream, x, y);
  const Recorded graph(stream);
  EXPECT_FALSE(emulator::IsCapturing(stream));
  EXPECT_EQ(graph.Nodes(), 2u);
  stream.Synchronize();
  EXPECT_EQ(x.Values()[0], 0.0f);
  for (int launch = 1; launch <= 3; ++launch) graph.Launch(stream);
  EXPECT_EQ(y.Values()[0], 0.0f);
  stream.Synchronize();
  EXPECT_EQ(y.Values()[0], 6.0f);
}

// A fork to a second stream and back; without the event back the sum may come too early.
TEST(Graphs, EventsLeadToOtherStreamsAndBack) {
  for (unsigned long long seed = 1; seed <= 20; ++seed) {
    emulator::SetSeed(seed);
    const Stream main, side;
    const Event fork(cudaEventDisableTiming), join(cudaEventDisableTiming);
    const Array<float> x(std::vector<float>(1, 0.0f)), y(std::vector<float>(1, 0.0f)),
        z(std::vector<float>(1, 0.0f));
    Begin(main);
    Fill(main, x, 1);
    Check(cudaEventRecord(fork, main), "recording");
    Check(cudaStreamWaitEvent(side, fork, 0), "waiting");
    Fill(side, y, 5);
    Add(side, x, y);
    Check(cudaEventRecord(join, side), "recording");
    Fill(main, z, 10);
    Check(cudaStreamWaitEvent(main, join, 0), "waiting");
    Add(main, y, z);
    EXPECT_TRUE(emulator::IsCapturing(side));
    const Recorded graph(main);
    EXPECT_FALSE(emulator::IsCapturing(side));
    EXPECT_EQ(graph.Nodes(), 5u);
    for (int launch = 0; launch < 2; ++launch) graph.Launch(main);
    main.Synchronize();
    EXPECT_EQ(z.Values()[0], 16.0f);
  }
}

// Two branches without an edge between them: one reads what the other writes.
TEST(Graphs, AMissingEdgeIsCaught) {
  int caught = 0;
  for (unsigned long long seed = 1; seed <= 20; ++seed) {
    emulator::SetSeed(seed);
    const Stream main, side;
    const Event fork(cudaEventDisableTiming), join(cudaEventDisableTiming);
    const Array<float> x(std::vector<float>(1, 0.0f)), y(std::vector<float>(1, 0.0f));
    Begin(main);
    Check(cudaEventRecord(fork, main), "recording");
    Check(cudaStreamWaitEvent(side, fork, 0), "waiting");
    Fill(main, x, 1);
    Add(side, x, y);
    Check(cudaEventRecord(join, side), "recording");
    Check(cudaStreamWaitEvent(main, join, 0), "waiting");
    const Recorded graph(main);
    graph.Launch(main);
    main.Synchronize();
    caught += y.Values()[0] != 1.0f;
  }
  EXPECT_GE(caught, 4);
  EXPECT_LE(caught, 16);
}

TEST(Graphs, PolledOperationsStartAfreshAtEachLaunch) {
  const Stream stream;
  auto finished = std::make_shared<int>(0);
  Begin(stream);
  Check(emulator::Enqueue(stream,
                          [finished, calls = 0]() mutable {
                            if (++calls < 3) return false;
                            *finished += calls;
                            return true;
                          }),
        "queueing");
  const Recorded graph(stream);
  graph.Launch(stream);
  graph.Launch(stream);
  stream.Synchronize();
  EXPECT_EQ(*finished, 6);
}

TEST(Graphs, ForkWithoutJoinIsRefused) {
  const Stream main, side;
  const Event fork(cudaEventDisableTiming);
  const Array<float> x(1);
  Begin(main);
  Check(cudaEventRecord(fork, main), "recording");
  Check(cudaStreamWaitEvent(side, fork, 0), "waiting");
  Fill(side, x, 1);
  cudaGraph_t graph = nullptr;
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaStreamEndCapture(main, &graph), cudaErrorStreamCaptureUnjoined);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(graph, nullptr);
  EXPECT_FALSE(emulator::IsCapturing(side));
  cudaGetLastError();
}

TEST(Graphs, WhatACaptureForbidsSpoilsIt) {
  const Stream stream, other;
  const Event outside(cudaEventDisableTiming);
  Check(cudaEventRecord(outside, other), "recording");
  const auto spoilt = [&](auto call, cudaError_t expected) {
    testing::internal::CaptureStderr();
    Begin(stream);
    EXPECT_EQ(call(), expected);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    cudaGetLastError();
    return testing::internal::GetCapturedStderr();
  };
  void* memory = nullptr;
  EXPECT_NE(spoilt([&] { return cudaMalloc(&memory, 16); }, cudaErrorStreamCaptureUnsupported)
                .find("cudaMalloc while a stream is being captured"),
            std::string::npos);
  spoilt([&] { return cudaStreamSynchronize(stream); }, cudaErrorStreamCaptureUnsupported);
  spoilt([&] { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported);
  EXPECT_NE(spoilt([&] { return cudaStreamWaitEvent(stream, outside, 0); },
                   cudaErrorStreamCaptureIsolation)
                .find("waits for an event from outside"),
            std::string::npos);
  spoilt(
      [&] {
        const Event inside(cudaEventDisableTiming);
        Check(cudaEventRecord(inside, stream), "recording");
        return cudaEventSynchronize(inside);
      },
      cudaErrorCapturedEvent);
  Check(cudaMalloc(&memory, 16), "allocating behind all that");
  Check(cudaFree(memory), "freeing");
}

TEST(Graphs, ADestroyedStreamEndsItsCapture) {
  {
    const Stream stream;
    Begin(stream);
  }
  void* memory = nullptr;
  Check(cudaMalloc(&memory, 16), "allocating");
  Check(cudaFree(memory), "freeing");
}

// Ends in a wrong order: work on a card after MPI has ended, communicators that go before graphs.

using TeardownDeathTest = EmulatorDeathTest;

// A communicator of this process alone.
ncclComm_t Alone() {
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclSuccess);
  return comm;
}

void Sum(const Array<float>& x, ncclComm_t comm, cudaStream_t stream) {
  EXPECT_EQ(ncclAllReduce(x.Data(), x.Data(), 1, ncclFloat32, ncclSum, comm, stream), ncclSuccess);
}

// One of everything that is destroyed by a call.
struct Things {
  Things() {
    Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
    Check(cudaMalloc(&data, 4), "memory");
    Check(cudaMallocHost(&pinned, 4), "page-locked memory");
    Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
    Check(cudaMemsetAsync(data, 0, 4, stream), "filling");
    Check(cudaStreamEndCapture(stream, &graph), "a graph");
    Check(cudaGraphInstantiate(&executable, graph, 0), "a graph to launch");
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    comm = Alone();
  }
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  void *data = nullptr, *pinned = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cublasLtHandle_t handle = nullptr;
  ncclComm_t comm = nullptr;
};

struct Call {
  const char* name;
  void (*call)(const Things&);
};
const Call kCalls[] = {
    {"cudaStreamDestroy", [](const Things& t) { cudaStreamDestroy(t.stream); }},
    {"cudaEventDestroy", [](const Things& t) { cudaEventDestroy(t.event); }},
    {"cudaFree", [](const Things& t) { cudaFree(t.data); }},
    {"cudaFreeHost", [](const Things& t) { cudaFreeHost(t.pinned); }},
    {"cudaGraphDestroy", [](const Things& t) { cudaGraphDestroy(t.graph); }},
    {"cudaGraphExecDestroy", [](const Things& t) { cudaGraphExecDestroy(t.executable); }},
    {"cudaDeviceSynchronize", [](const Things&) { cudaDeviceSynchronize(); }},
    {"cudaMemsetAsync", [](const Things& t) { cudaMemsetAsync(t.data, 0, 4, t.stream); }},
    {"a kernel, a copy or another operation of a stream",
     [](const Things& t) {
       Launch(t.stream, FillKernel, dim3(1), dim3(1), 0, static_cast<float*>(t.data), 1.0f, 1);
     }},
    {"cublasLtDestroy", [](const Things& t) { cublasLtDestroy(t.handle); }},
    {"ncclCommDestroy", [](const Things& t) { ncclCommDestroy(t.comm); }},
    {"ncclCommAbort", [](const Things& t) { ncclCommAbort(t.comm); }},
    {"ncclAllReduce",
     [](const Things& t) {
       ncclAllReduce(t.data, t.data, 1, ncclFloat32, ncclSum, t.comm, t.stream);
     }},
};

// Makes each call in a process of its own, after MPI has ended; exit code 0: all were ended.
[[noreturn]] void CallAfterEnd() {
  const Things things;
  MPI_Finalize();
  int ended = 0;
  for (const Call& each : kCalls) {
    const pid_t child = fork();
    if (child == 0) {
      each.call(things);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ended += WIFEXITED(status) && WEXITSTATUS(status) == kExitStatus ? 1 : 0;
  }
  _exit(ended == std::ssize(kCalls) ? 0 : 1);
}

TEST_F(TeardownDeathTest, CallsAfterMpiHasEndedAreReported) {
  std::vector<testing::Matcher<const std::string&>> messages;
  for (const Call& each : kCalls) {
    messages.push_back(
        testing::HasSubstr(std::string("emulated CUDA: ") + each.name + " after MPI_Finalize"));
  }
  EXPECT_EXIT(CallAfterEnd(), testing::ExitedWithCode(0), testing::AllOfArray(messages));
}

enum class Kept { kNothing, kGraph, kExecutable };

// Destroys a communicator beside what is left of a graph with an operation of it.
void DestroyBeside(Kept kept) {
  const Stream stream;
  const Array<float> x(std::vector<float>(1, 3.0f));
  const ncclComm_t comm = Alone();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  Sum(x, comm, stream);
  Check(cudaStreamEndCapture(stream, &graph), "a graph");
  Check(cudaGraphInstantiate(&executable, graph, 0), "a graph to launch");
  Check(cudaGraphLaunch(executable, stream), "launching");
  Sum(x, comm, stream);
  stream.Synchronize();
  if (kept != Kept::kGraph) Check(cudaGraphDestroy(graph), "destroying");
  if (kept != Kept::kExecutable) Check(cudaGraphExecDestroy(executable), "destroying");
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST_F(TeardownDeathTest, ACommunicatorThatGoesBeforeAGraphWithItsOperationsIsReported) {
  for (const Kept kept : {Kept::kGraph, Kept::kExecutable}) {
    EXPECT_EXIT(DestroyBeside(kept), testing::ExitedWithCode(kExitStatus),
                "ncclCommDestroy of communicator 0\\.[0-9]+ of ranks 0 while a CUDA graph holds");
  }
  DestroyBeside(Kept::kNothing);
}

// Heuristics of the emulated cuBLASLt that refuse epilogues: the same problems each time.

constexpr int kProblems = 200;

// Proposals for [rows, 16] = [rows, 8] [8, 16], with an epilogue; 0 if the library has none.
int Proposals(cublasLtHandle_t handle, std::uint64_t rows, cublasLtEpilogue_t epilogue) {
  const Array<float> bias(kProblems);
  const void* const at = bias.Data();
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulPreference_t wish = nullptr;
  cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                 sizeof epilogue);
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at, sizeof at);
  cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, rows, 8, static_cast<std::int64_t>(rows));
  cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, 8, 16, 8);
  cublasLtMatrixLayoutCreate(&c, CUDA_R_32F, rows, 16, static_cast<std::int64_t>(rows));
  cublasLtMatmulPreferenceCreate(&wish);
  cublasLtMatmulHeuristicResult_t results[4];
  int count = -1;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, product, a, b, c, c, wish, 4, results, &count);
  EXPECT_TRUE(status == CUBLAS_STATUS_SUCCESS || count == 0);
  cublasLtMatmulPreferenceDestroy(wish);
  for (const cublasLtMatrixLayout_t layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(product);
  return count;
}

std::vector<bool> Refused(std::uint64_t percent, cublasLtEpilogue_t epilogue) {
  cublasLtHandle_t handle = nullptr;
  EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  emulator::cublaslt::RefuseEpilogues(percent);
  std::vector<bool> refused;
  for (int rows = 1; rows <= kProblems; ++rows) {
    refused.push_back(Proposals(handle, static_cast<std::uint64_t>(rows), epilogue) == 0);
  }
  emulator::cublaslt::RefuseEpilogues(0);
  cublasLtDestroy(handle);
  return refused;
}

TEST(Heuristics, RefuseAPartOfTheEpilogues) {
  const std::vector<bool> none(kProblems, false), all(kProblems, true);
  EXPECT_EQ(Refused(0, CUBLASLT_EPILOGUE_BIAS), none);
  EXPECT_EQ(Refused(100, CUBLASLT_EPILOGUE_BIAS), all);
  EXPECT_EQ(Refused(100, CUBLASLT_EPILOGUE_DEFAULT), none);
  const std::vector<bool> half = Refused(50, CUBLASLT_EPILOGUE_BIAS);
  const auto count = std::count(half.begin(), half.end(), true);
  EXPECT_GT(count, kProblems * 35 / 100);
  EXPECT_LT(count, kProblems * 65 / 100);
  EXPECT_EQ(Refused(50, CUBLASLT_EPILOGUE_BIAS), half);
  EXPECT_NE(Refused(50, CUBLASLT_EPILOGUE_RELU_BIAS), half);
}

}  // namespace
