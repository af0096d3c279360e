// TokenMemory: a copy of this rank's own, or one that a node shares.
#include "token_memory.hpp"

#include <fmt/format.h>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/base/posix_file.hpp"

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
    : node_(node) {
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
    base = AllocateShared(world);
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

void* TokenMemory::AllocateShared(const comm::Communicator& world) {
  fills_ = node_.IsRoot();
  shared_.emplace(node_, bytes_);
  world.Together([&] {
    if (shared_->Error() == 0) return;
    throw RunError(
        fmt::format("data.staging = shared_memory: {} of tokens for the {} ranks of a node: {}",
                    Mebibytes(bytes_), node_.Size(), ErrorText(shared_->Error())),
        comm::RoomForSharedMemory() +
            " data.staging = none keeps a copy a rank instead, data.staging = stream none.");
  });
  return shared_->Data();
}

void TokenMemory::Publish() {
  if (shared_) node_.Barrier();
}

}  // namespace trireme::data
