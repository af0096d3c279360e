// TokenMemory: allocation, privately or in a node's shared window.
#include "token_memory.hpp"

#include <fmt/format.h>

#include <exception>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::data {

namespace {

std::int64_t Aligned(std::int64_t bytes) {
  return CeilDivide(bytes, kTokenAlignment) * kTokenAlignment;
}

}  // namespace

std::int64_t BytesInMemory(const TokenLayout& layout, Split split) {
  std::int64_t bytes = 0;
  for (const Array array : kArrays) {
    bytes += Aligned(layout.Of(split, array).Bytes());
  }
  return bytes;
}

TokenMemory::TokenMemory(const comm::Communicator& world, const comm::Communicator& node,
                         const TokenLayout& layout, const Keeping& keeping)
    : unwinding_(std::uncaught_exceptions()) {
  if (IsStream(keeping.staging)) return;
  keeps_ = keeping.splits;
  for (const Split split : kSplits) {
    const auto i = static_cast<std::size_t>(split);
    narrow_[i] = layout.Of(split, Array::kTokens).width == 2;
    if (keeps_[i]) bytes_ += BytesInMemory(layout, split);
  }
  if (bytes_ == 0) return;
  void* base = nullptr;
  if (keeping.staging == Staging::kSharedMemory) {
    base = AllocateShared(world, node);
  } else {
    world.Together([&] { base = Allocate(); });
  }
  auto* next = static_cast<std::byte*>(base);
  for (const Split split : kSplits) {
    if (!Keeps(split)) continue;
    for (const Array array : kArrays) {
      const StoredArray& stored = layout.Of(split, array);
      if (!stored.There()) continue;
      bases_[static_cast<std::size_t>(split)][static_cast<std::size_t>(array)] = next;
      next += Aligned(stored.Bytes());
    }
  }
}

void* TokenMemory::Allocate() {
  own_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes_));
  return own_.get();
}

void* TokenMemory::AllocateShared(const comm::Communicator& world, const comm::Communicator& node) {
  node_ = node.Duplicate();
  fills_ = node_.IsRoot();
  MPI_Comm_set_errhandler(node_.Handle(), MPI_ERRORS_RETURN);
  void* base = nullptr;
  // A failure (a full /dev/shm, say) is seen by every rank of the node.
  const MPI_Aint own_bytes = fills_ ? bytes_ : 0;
  int result = MPI_SUCCESS;
  {
    const comm::Recorded recorded(node_, comm::Call::kWindow, bytes_);
    result = MPI_Win_allocate_shared(own_bytes, 1, MPI_INFO_NULL, node_.Handle(),
                                     static_cast<void*>(&base), &window_);
  }
  world.Together([&] {
    if (result == MPI_SUCCESS) return;
    window_ = MPI_WIN_NULL;
    throw RunError(fmt::format("cannot share {} bytes of tokens among the {} ranks of a node",
                               bytes_, node_.Size()),
                   "Is /dev/shm too small? data.staging = none keeps a copy a rank instead.");
  });
  if (!fills_) {
    MPI_Aint bytes = 0;
    int unit = 0;
    MPI_Win_shared_query(window_, 0, &bytes, &unit, static_cast<void*>(&base));
  }
  Fence();
  return base;
}

void TokenMemory::Fence() {
  const comm::Recorded recorded(node_, comm::Call::kWindow);
  MPI_Win_fence(0, window_);
}

void TokenMemory::Publish() {
  if (window_ != MPI_WIN_NULL) Fence();
}

TokenMemory::~TokenMemory() {
  // A rank that unwinds may be alone, and would wait here for ever; MPI's end frees the window.
  const bool alone = std::uncaught_exceptions() > unwinding_;
  if (window_ == MPI_WIN_NULL || alone) return;
  const comm::Recorded recorded(node_, comm::Call::kWindow);
  MPI_Win_free(&window_);
}

}  // namespace trireme::data
