// Ends in a wrong order: work on a card after MPI has ended, communicators that go before graphs.
#include <cublasLt.h>
#include <gmock/gmock.h>
#include <mpi.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iterator>
#include <string>

#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

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

}  // namespace
