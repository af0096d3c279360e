// NcclChannel: tickets, their events, and what happens after a failure. connect.cpp makes the
// links.
#include "nccl_channel.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <thread>

#include "nccl.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::comm::nccl {

// Link: a communicator's start, health and end. The communicator is blocking: its calls return once
// they are queued, which takes microseconds and can be captured in a graph; a non-blocking one
// starts a thread for every call. Asynchronous errors are polled all the same.

void Check(ncclResult_t result, const std::string& what, ncclComm_t communicator) {
  if (result == ncclSuccess) return;
  std::string message = fmt::format("NCCL, {}: {}", what, ncclGetErrorString(result));
  const char* more = ncclGetLastError(communicator);
  if (more != nullptr && *more != '\0') message += fmt::format(" ({})", more);
  const char* const sharing = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = sharing != nullptr && std::atoi(sharing) != 0;
  throw RunError(message, may_share
                              ? "NCCL_DEBUG=WARN in the environment says more. If ranks share "
                                "a GPU: run.share_device = yes does without NCCL."
                              : "NCCL_DEBUG=WARN in the environment says more.");
}

Link::Link(std::string name, const ncclUniqueId& id, int ranks, int rank, int most_blocks)
    : name_(std::move(name)) {
  device::cuda::Check(cudaGetDevice(&device_), "the current GPU");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (most_blocks > 0) config.maxCTAs = most_blocks;
  Check(ncclCommInitRankConfig(&communicator_, ranks, id, rank, &config), name_ + ": starting");
  // Higher priority than the computation: a transfer is short, and other ranks wait for it.
  int least = 0, greatest = 0;
  device::cuda::Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priority of a queue");
  device::cuda::Check(cudaStreamCreateWithPriority(&queue_, cudaStreamNonBlocking, greatest),
                      "a queue for transfers");
}

Link::~Link() {
  Abort();
  if (queue_ != nullptr) cudaStreamDestroy(queue_);
}

std::string Link::Failure() const {
  if (communicator_ == nullptr) return "its transfers were given up";
  ncclResult_t found = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &found);
  const ncclResult_t result = asked != ncclSuccess ? asked : found;
  if (result == ncclSuccess || result == ncclInProgress) return "";
  return ncclGetErrorString(result);
}

bool Link::Idle() const {
  const cudaError_t code = cudaStreamQuery(queue_);
  if (code == cudaErrorNotReady) {
    cudaGetLastError();  // clears the code, which is no error
    return false;
  }
  device::cuda::Check(code, "a transfer");
  return true;
}

void Link::Destroy() {
  if (communicator_ != nullptr) ncclCommDestroy(std::exchange(communicator_, nullptr));
}

std::shared_future<void> Link::Abort() noexcept {
  const ncclComm_t communicator = std::exchange(communicator_, nullptr);
  if (end_.valid()) return end_;
  std::packaged_task<void()> abort([communicator, device = device_] {
    if (communicator == nullptr) return;
    // A thread starts on GPU 0, which NCCL would open when it restores the thread's device.
    cudaSetDevice(device);
    ncclCommAbort(communicator);
  });
  end_ = abort.get_future().share();
  if (communicator == nullptr) {
    abort();
    return end_;
  }
  try {
    std::thread(std::move(abort)).detach();
  } catch (const std::system_error&) {
    // No thread could be started: better to wait here than not to end the communicator.
    ncclCommAbort(communicator);
  }
  return end_;
}

// Transfers as NCCL's calls, in place where the operands are. NCCL's reduce-scatter and all-gather
// take parts of one size only. The parts of a shard group are almost even, so they move as equal
// blocks, and neighbours exchange what lies between a block and a part: at most four calls. Other
// uneven parts take one call per rank, grouped into one operation.

namespace {

constexpr int kSender = 0, kReceiver = 1;  // in a link of two

ncclDataType_t TypeOf(Dtype dtype) {
  return dtype == Dtype::kFloat32   ? ncclFloat32
         : dtype == Dtype::kFloat64 ? ncclFloat64
                                    : ncclBfloat16;
}

std::size_t Size(std::int64_t count) { return static_cast<std::size_t>(count); }

// One operation that is being queued: addresses by element, and checked calls.
struct Call {
  const Operation& operation;
  const Link& link;
  int rank, ranks;
  bool neighbours;  // messages between ranks r and r + 1 are connected

  const void* From(std::int64_t element) const {
    return ElementAt(const_cast<void*>(operation.from), operation.dtype, element);
  }
  void* To(std::int64_t element) const { return ElementAt(operation.to, operation.dtype, element); }
  ncclDataType_t Type() const { return TypeOf(operation.dtype); }
  void Require(ncclResult_t result) const {
    if (result == ncclSuccess) return;  // building the text below would allocate
    Check(result, link.Name() + ": " + NameOf(operation.transfer), link.Handle());
  }
  // Queues a call of NCCL, whose last arguments are the communicator and the queue.
  template <typename Function, typename... Arguments>
  void Queue(Function* function, Arguments... arguments) const {
    Require(function(arguments..., link.Handle(), link.Queue()));
  }
  // Copies within the card's memory.
  void Copy(const void* from, void* to, std::int64_t count, const char* what) const {
    const std::size_t bytes = static_cast<std::size_t>(BytesOf(operation.dtype, count));
    device::cuda::Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, link.Queue()),
                        what);
  }
  // Calls body(rank) for each rank, as one operation.
  template <typename Body>
  void ForRanks(Body&& body) const {
    AsOne([&] {
      for (int other = 0; other < ranks; ++other) body(other);
    });
  }
  // Runs the calls of body() as one operation.
  template <typename Body>
  void AsOne(Body&& body) const {
    Require(ncclGroupStart());
    body();
    Require(ncclGroupEnd());
  }
  // Messages; an empty one is skipped.
  void Send(const void* from, std::int64_t count, int other) const {
    if (count > 0) Queue(ncclSend, from, Size(count), Type(), other);
  }
  void Receive(void* to, std::int64_t count, int other) const {
    if (count > 0) Queue(ncclRecv, to, Size(count), Type(), other);
  }
};

bool AllEqual(const Places& places, int ranks) {
  const int* sizes = places.Sizes();
  return std::all_of(sizes, sizes + ranks, [&](int size) { return size == sizes[0]; });
}

// Moves the part at `start` of `to` to the front of `to`, in pieces of at most `start` elements, so
// that source and target do not overlap. Parts that are almost even take two pieces at most.
void MoveToFront(const Call& call, std::int64_t start, std::int64_t count) {
  if (start == 0) return;
  for (std::int64_t done = 0; done < count; done += start) {
    const std::int64_t piece = std::min(start, count - done);
    call.Copy(call.To(start + done), call.To(done), piece, "moving a part of a sum");
  }
}

// Size in elements of equal blocks, block r beginning at r times the size. Part r begins in block r
// and ends in block r or r + 1, so only one neighbour holds what it lacks. 0 if no size does this,
// if neighbours are not connected, or if one call per part costs no more (two ranks).
std::int64_t BlockOf(const Call& call) {
  constexpr std::int64_t kGrain = 32;  // elements, as in shards: a block begins on a cache line
  const Places& places = *call.operation.places;
  if (!call.neighbours || call.ranks <= 2) return 0;
  std::int64_t size = places.Total() / call.ranks;
  for (int rank = 1; rank < call.ranks; ++rank) {
    size = std::min<std::int64_t>(size, places.Starts()[rank] / rank);
  }
  size -= size % kGrain;
  for (int rank = 1; rank < call.ranks; ++rank) {
    if (places.Starts()[rank] > (rank + 1) * size) return 0;
  }
  return size;
}

// In place. Afterwards this rank's part lies at its own offset in the operand.
void ReduceScatterBlocks(const Call& call, std::int64_t block) {
  const Places& places = *call.operation.places;
  const std::int64_t tail = call.ranks * block, begin = call.rank * block;
  const int last = call.ranks - 1;
  call.AsOne([&] {
    call.Queue(ncclReduceScatter, call.operation.from, call.To(begin), Size(block), call.Type(),
               ncclSum);
    if (tail == places.Total()) return;
    void* const sum = call.rank == last ? call.To(tail) : nullptr;  // only the root uses it
    call.Queue(ncclReduce, call.From(tail), sum, Size(places.Total() - tail), call.Type(), ncclSum,
               last);
  });
  call.AsOne([&] {
    if (call.rank > 0) {
      call.Send(call.To(begin), places.Starts()[call.rank] - begin, call.rank - 1);
    }
    if (call.rank == last) return;
    const std::int64_t next = begin + block;
    call.Receive(call.To(next), places.Starts()[call.rank + 1] - next, call.rank + 1);
  });
}

void AllGatherBlocks(const Call& call, std::int64_t block) {
  const Places& places = *call.operation.places;
  const std::int64_t start = places.Starts()[call.rank], own = places.Sizes()[call.rank];
  const std::int64_t tail = call.ranks * block, begin = call.rank * block;
  const int last = call.ranks - 1;
  if (call.operation.from != call.To(start)) {
    call.Copy(call.operation.from, call.To(start), own, "moving a part to its place");
  }
  call.AsOne([&] {
    const std::int64_t next = begin + block;
    if (call.rank < last) {
      call.Send(call.To(next), places.Starts()[call.rank + 1] - next, call.rank + 1);
    }
    if (call.rank > 0) call.Receive(call.To(begin), start - begin, call.rank - 1);
  });
  call.AsOne([&] {
    call.Queue(ncclAllGather, call.To(begin), call.operation.to, Size(block), call.Type());
    if (tail == places.Total()) return;
    call.Queue(ncclBroadcast, call.To(tail), call.To(tail), Size(places.Total() - tail),
               call.Type(), last);
  });
}

void ReduceScatter(const Call& call) {
  const Places& places = *call.operation.places;
  const std::int64_t start = places.Starts()[call.rank], own = places.Sizes()[call.rank];
  const bool in_place = call.operation.from == call.operation.to;
  // NCCL's in-place sum leaves a part at its own offset in the operand.
  void* to = in_place ? call.To(start) : call.operation.to;
  if (AllEqual(places, call.ranks)) {
    if (own == 0) return;
    call.Queue(ncclReduceScatter, call.operation.from, to, Size(own), call.Type(), ncclSum);
  } else if (const std::int64_t block = in_place ? BlockOf(call) : 0; block > 0) {
    ReduceScatterBlocks(call, block);
  } else {
    call.ForRanks([&](int root) {
      const int count = places.Sizes()[root];
      if (count == 0) return;
      const std::int64_t at = places.Starts()[root];
      void* sum = root == call.rank ? to : nullptr;  // only the root uses it
      call.Queue(ncclReduce, call.From(at), sum, Size(count), call.Type(), ncclSum, root);
    });
  }
  if (in_place) MoveToFront(call, start, own);
}

void AllGather(const Call& call) {
  const Places& places = *call.operation.places;
  if (AllEqual(places, call.ranks)) {
    if (places.Total() == 0) return;
    return call.Queue(ncclAllGather, call.operation.from, call.operation.to,
                      Size(places.Sizes()[0]), call.Type());
  }
  if (const std::int64_t block = BlockOf(call); block > 0) return AllGatherBlocks(call, block);
  call.ForRanks([&](int root) {
    const int count = places.Sizes()[root];
    if (count == 0) return;
    void* to = call.To(places.Starts()[root]);
    const void* from = root == call.rank ? call.operation.from : to;  // only the root reads it
    call.Queue(ncclBroadcast, from, to, Size(count), call.Type(), root);
  });
}

void AllToAll(const Call& call) {
  const Places& sent = *call.operation.places;
  const Places& taken = *call.operation.taken;
  if (sent.Total() == 0 && taken.Total() == 0) return;
  call.ForRanks([&](int other) {
    call.Send(call.From(sent.Starts()[other]), sent.Sizes()[other], other);
    call.Receive(call.To(taken.Starts()[other]), taken.Sizes()[other], other);
  });
}

// Limit for each wait at a channel's end: for its transfers, then for the other ranks.
constexpr double kPatience = 10;  // seconds

// Polls `done` for at most `seconds`; whether it came true.
template <typename Done>
bool Within(double seconds, Done&& done) {
  const double start = Seconds();
  while (!done()) {
    if (Seconds() - start > seconds) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

void QueueCollective(const Operation& operation, const Link& link, const Place& place) {
  const Call call{operation, link, place.rank, place.ranks, place.neighbours};
  switch (operation.transfer) {
    case Transfer::kAllReduce: {
      const ncclRedOp_t reduction = operation.reduction == Reduction::kMax ? ncclMax : ncclSum;
      if (operation.count == 0) return;
      return call.Queue(ncclAllReduce, operation.from, operation.to, Size(operation.count),
                        call.Type(), reduction);
    }
    case Transfer::kBroadcast:
      if (operation.count == 0) return;
      return call.Queue(ncclBroadcast, operation.from, operation.to, Size(operation.count),
                        call.Type(), operation.peer);
    case Transfer::kReduceScatter:
      return ReduceScatter(call);
    case Transfer::kAllGather:
      return AllGather(call);
    case Transfer::kAllToAll:
      return AllToAll(call);
    case Transfer::kSend:
    case Transfer::kReceive:
      break;
  }
  throw RunError("a message among the collectives of NCCL: a bug in Trireme");
}

void QueueMessage(const Operation& operation, const Link& link) {
  const bool sends = operation.transfer == Transfer::kSend;
  const Call call{operation, link, sends ? kSender : kReceiver, 2, false};
  if (sends) {
    call.Send(operation.from, operation.count, kReceiver);
  } else {
    call.Receive(operation.to, operation.count, kSender);
  }
}

std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup) {
  return std::make_unique<NcclChannel>(group, setup);
}

NcclChannel::NcclChannel(const Communicator& group, const ChannelSetup& setup)
    : group_(group.Duplicate()),
      name_(setup.group),
      stream_(setup.stream),
      exceptions_(std::uncaught_exceptions()) {
  KeepLog();
  ConnectCollectives(setup);
  NameLog(Name());
  ConnectEdges(setup);
  if (!edges_.empty()) NameLog(Name() + ", messages");
  RequireCrossing(setup);
}

NcclChannel::~NcclChannel() {
  try {
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    if (!failed_ && !unwinding && ComeToRest()) {
      collectives_->Destroy();
      for (const Edge& edge : edges_) edge.link->Destroy();
      return;
    }
  } catch (const std::exception&) {
    // The failure has been or will be reported where the transfer is awaited.
  }
  if (!failed_) AwaitEnds(GiveUp());
}

// Whether all links of all ranks are idle; only then can a link be freed without harm to others.
bool NcclChannel::ComeToRest() {
  const auto idle = [&] {
    return collectives_->Idle() &&
           std::all_of(edges_.begin(), edges_.end(), [](const Edge& e) { return e.link->Idle(); });
  };
  if (!Within(kPatience, idle)) return false;
  MPI_Request all = MPI_REQUEST_NULL;
  MPI_Ibarrier(group_.Handle(), &all);
  return Within(kPatience, [&] {
    int done = 0;
    MPI_Test(&all, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
}

std::string NcclChannel::Name() const { return fmt::format("{} group", NameOf(name_)); }

const Link& NcclChannel::LinkOf(const Operation& operation) const {
  if (!operation.IsMessage()) return *collectives_;
  const bool outgoing = operation.transfer == Transfer::kSend;
  for (const Edge& edge : edges_) {
    if (edge.peer == operation.peer && edge.tag == operation.tag && edge.outgoing == outgoing) {
      return *edge.link;
    }
  }
  throw RunError(
      fmt::format("NCCL, {}: no way for a {} of tag {} between ranks {} and {} of the group",
                  Name(), NameOf(operation.transfer), operation.tag, group_.Rank(), operation.peer),
      "This is a bug in Trireme.");
}

int NcclChannel::Start(const Operation& operation) {
  if (failed_) CheckHealth();
  const Link& link = LinkOf(operation);
  const int ticket = Take();
  Flight& flight = flights_[static_cast<std::size_t>(ticket)];
  flight.recorded = Capturing();
  flight.operand.Record(stream_.gpu->queue);
  FollowComputation(flight.operand, link.Queue());
  BeginTrace(operation, flight, link.Queue());
  if (operation.IsMessage()) {
    QueueMessage(operation, link);
  } else {
    QueueCollective(operation, link, place_);
  }
  flight.arrived.Record(link.Queue());
  return ticket;
}

void NcclChannel::FollowComputation(const device::Event& operand, void* link_queue) const {
  operand.MakeWait(link_queue);
}

bool NcclChannel::Test(int ticket) {
  const Flight& flight = flights_[static_cast<std::size_t>(ticket)];
  // A captured event cannot be queried, nor can any other event during a capture.
  if (flight.recorded || Capturing()) return false;
  return flight.arrived.Happened();
}

void NcclChannel::Wait(int ticket) {
  Flight& flight = flights_[static_cast<std::size_t>(ticket)];
  if (!flight.recorded) flight.stood.Record(stream_.gpu->queue);
  flight.arrived.MakeWait(stream_.gpu->queue);
  (flight.recorded ? idle_ : waited_).push_back(ticket);
}

int NcclChannel::Take() {
  if (idle_.empty() && !Capturing()) Settle();
  if (idle_.empty()) {
    Flight flight;
    flight.operand = device::Event(stream_);
    flight.arrived = device::Event(stream_, true);
    flight.stood = device::Event(stream_, true);
    flights_.push_back(std::move(flight));
    return static_cast<int>(flights_.size()) - 1;
  }
  const int ticket = idle_.back();
  idle_.pop_back();
  return ticket;
}

// Reads the times of those waits that the device has passed.
void NcclChannel::Settle() {
  std::size_t read = 0;
  for (; read < waited_.size(); ++read) {
    const Flight& flight = flights_[static_cast<std::size_t>(waited_[read])];
    if (!flight.stood.Happened() || !flight.arrived.Happened()) break;
    exposed_ += std::max(0.0, flight.arrived.SecondsSince(flight.stood));
    if (flight.traced && recorder_ != nullptr) Trace(flight);
    idle_.push_back(waited_[read]);
  }
  waited_.erase(waited_.begin(), waited_.begin() + static_cast<std::ptrdiff_t>(read));
}

double NcclChannel::TakeExposed() {
  if (!Capturing()) Settle();
  return std::exchange(exposed_, 0.0);
}

bool NcclChannel::Capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  device::cuda::Check(cudaStreamIsCapturing(device::cuda::Queue(stream_), &status),
                      "state of the computation's queue");
  return status != cudaStreamCaptureStatusNone;
}

void NcclChannel::CheckHealth() {
  BoundLog();
  std::string failure = collectives_->Failure();
  for (const Edge& edge : edges_) {
    if (failure.empty()) failure = edge.link->Failure();
  }
  if (failure.empty()) return;
  GiveUp();
  throw RunError(fmt::format("NCCL, {}: a transfer cannot end: {}", Name(), failure),
                 "A rank of this group stopped, or its network failed: the first message of the "
                 "other ranks says why. NCCL_DEBUG=WARN in the environment says more.");
}

std::vector<std::shared_future<void>> NcclChannel::GiveUp() noexcept {
  failed_ = true;
  std::vector<std::shared_future<void>> ends = {collectives_->Abort()};
  for (const Edge& edge : edges_) ends.push_back(edge.link->Abort());
  return ends;
}

// NcclChannel: its transfers, and the computation's waits for them, in the timeline.

void NcclChannel::TraceInto(device::Recorder* recorder) {
  if (recorder_ != nullptr && !Capturing()) Settle();
  recorder_ = recorder;
  for (Edge& edge : edges_) edge.traced = 0;
}

void NcclChannel::BeginTrace(const Operation& operation, Flight& flight, void* link_queue) {
  flight.traced = recorder_ != nullptr && !flight.recorded;
  if (!flight.traced) return;
  flight.slice = SliceOf(name_, operation.transfer, operation.Bytes());
  for (Edge& edge : edges_) {
    const bool message =
        operation.transfer == (edge.outgoing ? Transfer::kSend : Transfer::kReceive);
    if (!message || edge.peer != operation.peer || edge.tag != operation.tag) continue;
    flight.slice.peer = edge.peer;
    flight.slice.tag = edge.tag;
    flight.slice.sequence = ++edge.traced;
  }
  if (!flight.begun.Made()) flight.begun = device::Event(stream_, true);
  flight.begun.Record(link_queue);
}

void NcclChannel::Trace(const Flight& flight) const {
  device::Slice transfer = flight.slice;
  recorder_->Place(transfer, flight.begun, flight.arrived);
  recorder_->Add(transfer);
  if (flight.arrived.SecondsSince(flight.stood) <= 0) return;
  device::Slice wait = WaitFor(transfer);
  // Waits for both directions are bubbles, because a step's times on a GPU do not separate them.
  if (name_ == Group::kPipeline) wait.name = device::SliceName::kBubble;
  wait.queue = device::SliceQueue::kGpu;
  recorder_->Place(wait, flight.stood, flight.arrived);
  recorder_->Add(wait);
}

}  // namespace trireme::comm::nccl
