// Transfers as NCCL's calls. All-reduce, all-gather, broadcast: in place where the operands are.
// NCCL's own reduce-scatter and all-gather know parts of one size alone. Parts of a shard group,
// which are cut almost evenly, are moved as equal blocks, and neighbours exchange what lies between
// a block and a part: four calls at most. Of other parts a group of calls, one for each rank's
// part, runs as one operation.
#include "operations.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::comm::nccl {

namespace {

constexpr int kSender = 0, kReceiver = 1;  // in a link of two

ncclDataType_t TypeOf(Dtype dtype) {
  return dtype == Dtype::kFloat32   ? ncclFloat32
         : dtype == Dtype::kFloat64 ? ncclFloat64
                                    : ncclBfloat16;
}

// One operation that is being queued: operands by element, calls checked.
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
  std::size_t Bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count) * SizeOf(operation.dtype);
  }
  void Require(ncclResult_t result) const {
    if (result == ncclSuccess) return;  // the rest takes memory
    Check(result, link.Name() + ": " + NameOf(operation.transfer), link.Handle());
  }
  // body(rank) for each rank, as one operation.
  template <typename Body>
  void ForRanks(Body&& body) const {
    AsOne([&] {
      for (int other = 0; other < ranks; ++other) body(other);
    });
  }
  // The calls of body() as one operation.
  template <typename Body>
  void AsOne(Body&& body) const {
    Require(ncclGroupStart());
    body();
    Require(ncclGroupEnd());
  }
  // A message of elements [begin, end) of `to`, nothing if there are none.
  void Send(std::int64_t begin, std::int64_t end, int other) const {
    if (begin == end) return;
    Require(ncclSend(To(begin), static_cast<std::size_t>(end - begin), Type(), other, link.Handle(),
                     link.Queue()));
  }
  void Receive(std::int64_t begin, std::int64_t end, int other) const {
    if (begin == end) return;
    Require(ncclRecv(To(begin), static_cast<std::size_t>(end - begin), Type(), other, link.Handle(),
                     link.Queue()));
  }
};

std::size_t Size(std::int64_t count) { return static_cast<std::size_t>(count); }

bool AllEqual(const Places& places, int ranks) {
  const int* sizes = places.Sizes();
  return std::all_of(sizes, sizes + ranks, [&](int size) { return size == sizes[0]; });
}

// Moves the part at `start` of `to` to its front. Pieces no longer than the way they move do not
// overlap; as parts are cut (almost even) there are two at most.
void MoveToFront(const Call& call, std::int64_t start, std::int64_t count) {
  if (start == 0) return;
  for (std::int64_t done = 0; done < count; done += start) {
    const std::int64_t piece = std::min(start, count - done);
    device::cuda::Check(cudaMemcpyAsync(call.To(done), call.To(start + done), call.Bytes(piece),
                                        cudaMemcpyDeviceToDevice, call.link.Queue()),
                        "moving a part of a sum");
  }
}

// Elements of equal blocks, the r-th from r times as many on, such that each part ends in the block
// of its rank or the next one, and begins in its own: what a part lacks lies with one neighbour. 0
// if there are none, or if a call for each part costs no more.
std::int64_t BlockOf(const Call& call) {
  constexpr std::int64_t kGrain = 32;  // as shards are cut: blocks begin on a cache line
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

// In place. Afterwards this rank's part lies where it lies in the whole.
void ReduceScatterBlocks(const Call& call, std::int64_t block) {
  const Places& places = *call.operation.places;
  const std::int64_t tail = call.ranks * block, begin = call.rank * block;
  const int last = call.ranks - 1;
  call.AsOne([&] {
    call.Require(ncclReduceScatter(call.operation.from, call.To(begin), Size(block), call.Type(),
                                   ncclSum, call.link.Handle(), call.link.Queue()));
    if (tail == places.Total()) return;
    void* const sum = call.rank == last ? call.To(tail) : nullptr;  // read on the root alone
    call.Require(ncclReduce(call.From(tail), sum, Size(places.Total() - tail), call.Type(), ncclSum,
                            last, call.link.Handle(), call.link.Queue()));
  });
  call.AsOne([&] {
    if (call.rank > 0) call.Send(begin, places.Starts()[call.rank], call.rank - 1);
    if (call.rank == last) return;
    call.Receive(begin + block, places.Starts()[call.rank + 1], call.rank + 1);
  });
}

void AllGatherBlocks(const Call& call, std::int64_t block) {
  const Places& places = *call.operation.places;
  const std::int64_t start = places.Starts()[call.rank], own = places.Sizes()[call.rank];
  const std::int64_t tail = call.ranks * block, begin = call.rank * block;
  const int last = call.ranks - 1;
  if (call.operation.from != call.To(start)) {
    device::cuda::Check(cudaMemcpyAsync(call.To(start), call.operation.from, call.Bytes(own),
                                        cudaMemcpyDeviceToDevice, call.link.Queue()),
                        "moving a part to its place");
  }
  call.AsOne([&] {
    if (call.rank < last) {
      call.Send(begin + block, places.Starts()[call.rank + 1], call.rank + 1);
    }
    if (call.rank > 0) call.Receive(begin, start, call.rank - 1);
  });
  call.AsOne([&] {
    call.Require(ncclAllGather(call.To(begin), call.operation.to, Size(block), call.Type(),
                               call.link.Handle(), call.link.Queue()));
    if (tail == places.Total()) return;
    call.Require(ncclBroadcast(call.To(tail), call.To(tail), Size(places.Total() - tail),
                               call.Type(), last, call.link.Handle(), call.link.Queue()));
  });
}

void ReduceScatter(const Call& call) {
  const Places& places = *call.operation.places;
  const std::int64_t start = places.Starts()[call.rank], own = places.Sizes()[call.rank];
  const bool in_place = call.operation.from == call.operation.to;
  // NCCL's in place leaves a part where it lies in the whole.
  void* to = in_place ? call.To(start) : call.operation.to;
  if (AllEqual(places, call.ranks)) {
    if (own == 0) return;
    call.Require(ncclReduceScatter(call.operation.from, to, Size(own), call.Type(), ncclSum,
                                   call.link.Handle(), call.link.Queue()));
  } else if (const std::int64_t block = in_place ? BlockOf(call) : 0; block > 0) {
    ReduceScatterBlocks(call, block);
  } else {
    call.ForRanks([&](int root) {
      const int count = places.Sizes()[root];
      if (count == 0) return;
      const std::int64_t at = places.Starts()[root];
      void* sum = root == call.rank ? to : nullptr;  // read on the root alone
      call.Require(ncclReduce(call.From(at), sum, Size(count), call.Type(), ncclSum, root,
                              call.link.Handle(), call.link.Queue()));
    });
  }
  if (in_place) MoveToFront(call, start, own);
}

void AllGather(const Call& call) {
  const Places& places = *call.operation.places;
  if (AllEqual(places, call.ranks)) {
    if (places.Total() == 0) return;
    return call.Require(ncclAllGather(call.operation.from, call.operation.to,
                                      Size(places.Sizes()[0]), call.Type(), call.link.Handle(),
                                      call.link.Queue()));
  }
  if (const std::int64_t block = BlockOf(call); block > 0) return AllGatherBlocks(call, block);
  call.ForRanks([&](int root) {
    const int count = places.Sizes()[root];
    if (count == 0) return;
    void* to = call.To(places.Starts()[root]);
    const void* from = root == call.rank ? call.operation.from : to;  // read on the root alone
    call.Require(ncclBroadcast(from, to, Size(count), call.Type(), root, call.link.Handle(),
                               call.link.Queue()));
  });
}

void AllToAll(const Call& call) {
  const Places& sent = *call.operation.places;
  const Places& taken = *call.operation.taken;
  if (sent.Total() == 0 && taken.Total() == 0) return;
  call.ForRanks([&](int other) {
    const int out = sent.Sizes()[other], in = taken.Sizes()[other];
    if (out > 0) {
      call.Require(ncclSend(call.From(sent.Starts()[other]), Size(out), call.Type(), other,
                            call.link.Handle(), call.link.Queue()));
    }
    if (in > 0) {
      call.Require(ncclRecv(call.To(taken.Starts()[other]), Size(in), call.Type(), other,
                            call.link.Handle(), call.link.Queue()));
    }
  });
}

}  // namespace

void QueueCollective(const Operation& operation, const Link& link, const Place& place) {
  const Call call{operation, link, place.rank, place.ranks, place.neighbours};
  switch (operation.transfer) {
    case Transfer::kAllReduce: {
      const ncclRedOp_t reduction = operation.reduction == Reduction::kMax ? ncclMax : ncclSum;
      if (operation.count == 0) return;
      return call.Require(ncclAllReduce(operation.from, operation.to, Size(operation.count),
                                        call.Type(), reduction, link.Handle(), link.Queue()));
    }
    case Transfer::kBroadcast:
      if (operation.count == 0) return;
      return call.Require(ncclBroadcast(operation.from, operation.to, Size(operation.count),
                                        call.Type(), operation.peer, link.Handle(), link.Queue()));
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

void QueueSend(const Operation& operation, const Link& link) {
  if (operation.count == 0) return;
  const Call call{operation, link, kSender, 2, false};
  call.Require(ncclSend(operation.from, Size(operation.count), call.Type(), kReceiver,
                        link.Handle(), link.Queue()));
}

void QueueReceive(const Operation& operation, const Link& link) {
  if (operation.count == 0) return;
  const Call call{operation, link, kReceiver, 2, false};
  call.Require(ncclRecv(operation.to, Size(operation.count), call.Type(), kSender, link.Handle(),
                        link.Queue()));
}

}  // namespace trireme::comm::nccl
