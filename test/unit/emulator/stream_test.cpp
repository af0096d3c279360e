// Streams run late and in any order that events allow: what lacks a wait comes out wrong.
#include <cmath>
#include <memory>
#include <string>

#include "emulator/mutation.hpp"
#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

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

}  // namespace
