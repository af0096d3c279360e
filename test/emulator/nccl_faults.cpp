// Uses of NCCL between ranks, right ones and wrong ones; nccl_fault.cmake checks what becomes of
// them.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kCount = 10;  // elements of an operation

void Check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s failed\n", what);
  std::exit(1);
}

int WorldRank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// A communicator of some ranks of the world, with a stream and an operand of its own.
class Group {
 public:
  explicit Group(const std::vector<int>& ranks) : ranks_(ranks) {
    ncclUniqueId id{};
    const int own = WorldRank();
    if (own == ranks[0]) {
      Check(ncclGetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId");
      for (const int rank : ranks) {
        if (rank != own) MPI_Send(&id, sizeof id, MPI_BYTE, rank, 0, MPI_COMM_WORLD);
      }
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == own) rank_ = static_cast<int>(i);
    }
    if (rank_ < 0) return;
    if (rank_ > 0) {
      MPI_Recv(&id, sizeof id, MPI_BYTE, ranks[0], 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const int size = static_cast<int>(ranks.size());
    Check(ncclCommInitRankConfig(&comm_, size, id, rank_, &config) == ncclSuccess, "a start");
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess, "a stream");
    Check(cudaMalloc(reinterpret_cast<void**>(&data_), kCount * sizeof(float)) == cudaSuccess,
          "memory");
    Check(cudaMemset(data_, 0, kCount * sizeof(float)) == cudaSuccess, "cudaMemset");
    Check(cudaDeviceSynchronize() == cudaSuccess, "waiting");
  }
  ~Group() {
    if (rank_ < 0) return;
    ncclCommDestroy(comm_);
    cudaStreamDestroy(stream_);
    cudaFree(data_);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  cudaStream_t Stream() const { return stream_; }
  bool Done() const { return cudaStreamQuery(stream_) == cudaSuccess; }
  void Sum() const {
    Check(ncclAllReduce(data_, data_, kCount, ncclFloat32, ncclSum, comm_, stream_) == ncclSuccess,
          "ncclAllReduce");
  }
  void Send(int to) const {
    Check(ncclSend(data_, kCount, ncclFloat32, to, comm_, stream_) == ncclSuccess, "ncclSend");
  }
  void Receive(int from) const {
    Check(ncclRecv(data_, kCount, ncclFloat32, from, comm_, stream_) == ncclSuccess, "ncclRecv");
  }

 private:
  std::vector<int> ranks_;
  int rank_ = -1;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  float* data_ = nullptr;
};

// All ranks' operations are done; what follows may destroy them.
void Finish() {
  Check(cudaDeviceSynchronize() == cudaSuccess, "waiting");
  MPI_Barrier(MPI_COMM_WORLD);
}

// Messages of two members of `all` are no operations of the third.
void SameOrder() {
  const Group all({0, 1, 2}), some({1, 2});
  const int rank = WorldRank();
  all.Sum();
  if (rank == 0) all.Send(1);
  if (rank == 1) all.Receive(0);
  if (rank > 0) some.Sum();
  all.Sum();
  Finish();
}

void OtherOrder() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const Group all(ranks == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2});
  const Group some(ranks == 2 ? std::vector<int>{0, 1} : std::vector<int>{1, 2});
  const int last = ranks - 1;
  if (ranks > 2) all.Sum();
  if (WorldRank() == last) all.Sum();
  if (WorldRank() >= last - 1) some.Sum();
  if (WorldRank() != last) all.Sum();
  Finish();
}

// Follows `from` in a capture, or leads back to it.
void Follow(cudaStream_t to, cudaStream_t from) {
  cudaEvent_t event = nullptr;
  Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess, "an event");
  Check(cudaEventRecord(event, from) == cudaSuccess, "cudaEventRecord");
  Check(cudaStreamWaitEvent(to, event, 0) == cudaSuccess, "cudaStreamWaitEvent");
  cudaEventDestroy(event);
}

// `to` goes on after what is queued in `from`.
void Follow(const Group& to, const Group& from) { Follow(to.Stream(), from.Stream()); }

// record: what `stream` and those that follow it are given.
void RunInGraph(cudaStream_t stream, const std::function<void()>& record) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "capture");
  record();
  Check(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "the end of a capture");
  Check(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess, "cudaGraphInstantiate");
  Check(cudaGraphLaunch(executable, stream) == cudaSuccess, "cudaGraphLaunch");
  Check(cudaStreamSynchronize(stream) == cudaSuccess, "waiting");
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

void OtherOrderInGraph() {
  const Group first({0, 1}), second({0, 1});
  RunInGraph(first.Stream(), [&] {
    Follow(second, first);
    if (WorldRank() == 0) first.Sum();
    second.Sum();
    if (WorldRank() == 1) first.Sum();
    Follow(first, second);
  });
  Finish();
}

void CrossingMessages() {
  const Group all({0, 1}), forth({0, 1}), back({0, 1});
  const int rank = WorldRank();
  rank == 0 ? forth.Send(1) : back.Send(0);
  rank == 0 ? back.Receive(1) : forth.Receive(0);
  all.Sum();
  Finish();
}

void OtherOrderOfMessage() {
  const Group all({0, 1}), forth({0, 1});
  if (WorldRank() == 0) all.Sum();
  WorldRank() == 0 ? forth.Send(1) : forth.Receive(0);
  if (WorldRank() == 1) all.Sum();
  Finish();
}

// Rank 1 launches a message of `last` behind one that waits for `second`, which rank 0 sends after
// that message has come.
void Turns() {
  const Group first({0, 1}), second({0, 1}), last({0, 1});
  if (WorldRank() == 0) {
    last.Send(1);
    Follow(first, last);
    first.Send(1);
    second.Send(1);
  } else {
    first.Receive(0);
    Follow(second, first);
    second.Receive(0);
    last.Receive(0);
  }
  Finish();
}

// A message to each side, recorded in a graph: a send first on both ranks.
void SendsInGraph() {
  const Group forth({0, 1}), back({0, 1});
  const Group& out = WorldRank() == 0 ? forth : back;
  const Group& in = WorldRank() == 0 ? back : forth;
  const int other = 1 - WorldRank();
  RunInGraph(out.Stream(), [&] {
    Follow(in, out);
    out.Send(other);
    in.Receive(other);
    Follow(out, in);
  });
  Finish();
}

// Receives: `count` of them have begun before the first sender comes.
void Waiting(int count) {
  std::vector<std::unique_ptr<Group>> groups;
  for (int i = 0; i < count; ++i) groups.push_back(std::make_unique<Group>(std::vector<int>{0, 1}));
  int begun = 0;
  if (WorldRank() == 0) {
    for (const auto& group : groups) {
      group->Receive(1);
      begun += group->Done() ? 0 : 1;
    }
    MPI_Send(&begun, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
  } else {
    MPI_Recv(&begun, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    Check(begun == count, "receives that wait");
    for (const auto& group : groups) group->Send(0);
  }
  Finish();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  cudaSetDevice(WorldRank());
  const std::string chosen = argc == 2 ? argv[1] : "";
  const auto colon = chosen.find(':');
  const std::map<std::string, void (*)()> cases = {{"same_order", SameOrder},
                                                   {"other_order", OtherOrder},
                                                   {"turns", Turns},
                                                   {"sends_in_graph", SendsInGraph},
                                                   {"other_order_in_graph", OtherOrderInGraph},
                                                   {"crossing_messages", CrossingMessages},
                                                   {"other_order_of_message", OtherOrderOfMessage}};
  const auto found = cases.find(chosen);
  Check(colon != std::string::npos || found != cases.end(), "the choice of a case");
  if (colon != std::string::npos) {
    Waiting(std::atoi(chosen.c_str() + colon + 1));
  } else {
    found->second();
  }
  MPI_Finalize();
  return 0;
}
