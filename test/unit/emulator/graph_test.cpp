// Capture and replay: what streams are given becomes a graph with the order that streams and events
// say, and no other.
#include <memory>
#include <string>

#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

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

}  // namespace
