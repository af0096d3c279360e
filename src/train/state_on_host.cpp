// StateOnHost: copies of training state between the device and the host.
#include "trireme/train/state_on_host.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "trireme/base/bfloat16.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::train {

namespace {

constexpr std::int64_t kAlignment = 64;  // bytes, of a block

std::int64_t Bytes(const kernels::StateBlock& block) {
  return (block.end - block.begin) * static_cast<std::int64_t>(SizeOf(block.dtype));
}

}  // namespace

StateOnHost::StateOnHost(const device::Stream& stream, std::vector<kernels::StateBlock> blocks)
    : stream_(stream), there_(std::move(blocks)), here_(there_) {
  if (!stream.OnGpu()) return;
  std::int64_t bytes = 0;
  for (kernels::StateBlock& block : here_) {
    block.dtype = SumTypeOf(block.dtype);
    bytes += CeilDivide(Bytes(block), kAlignment) * kAlignment;
  }
  memory_ = device::AllocateZeroed(bytes);
  auto* next = static_cast<std::byte*>(memory_.get());
  for (kernels::StateBlock& block : here_) {
    block.data = next;
    next += CeilDivide(Bytes(block), kAlignment) * kAlignment;
  }
}

StateOnHost StateOnHost::Fetch() && {
  for (std::size_t i = 0; stream_.OnGpu() && i < here_.size(); ++i) {
    const kernels::StateBlock &from = there_[i], &to = here_[i];
    if (from.dtype == to.dtype) {
      device::CopyOut(stream_, from.data, to.data, Bytes(from));
      continue;
    }
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(from.end - from.begin));
    device::CopyOut(stream_, from.data, narrow.data(), Bytes(from));
    std::ranges::transform(narrow, static_cast<float*>(to.data), FromBfloat16);
  }
  return std::move(*this);
}

void StateOnHost::Store() const {
  for (std::size_t i = 0; stream_.OnGpu() && i < here_.size(); ++i) {
    const kernels::StateBlock &to = there_[i], &from = here_[i];
    if (from.dtype == to.dtype) {
      device::CopyIn(stream_, from.data, to.data, Bytes(to));
      continue;
    }
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(from.end - from.begin));
    std::transform(static_cast<const float*>(from.data),
                   static_cast<const float*>(from.data) + narrow.size(), narrow.begin(),
                   RoundToBfloat16);
    device::CopyIn(stream_, narrow.data(), to.data, Bytes(to));
  }
}

namespace {

// Reads blocks of the device's memory through two page-locked buffers: the host copies out of one
// while the device fills the other.
class DeviceReader {
 public:
  DeviceReader(const device::Stream& stream, const std::vector<kernels::StateBlock>& blocks)
      : stream_(stream) {
    for (const kernels::StateBlock& block : blocks) stored_[block.data] = block.dtype;
    for (device::PinnedBuffer& buffer : buffers_) {
      buffer = device::AllocatePinned(kBounceBytes, stream.Where());
    }
  }

  // Elements [first, last) of a block, in the type of sums.
  void Read(const kernels::StateBlock& block, std::int64_t first, std::int64_t last, void* to) {
    const Dtype stored = stored_.at(block.data);
    const auto size = static_cast<std::int64_t>(SizeOf(stored));
    const auto wide = static_cast<std::int64_t>(SizeOf(block.dtype));
    const std::int64_t step = kBounceBytes / size;
    const auto start = [&](std::int64_t at, std::size_t buffer) {
      const std::int64_t count = std::min(step, last - at);
      device::StartCopyOut(stream_,
                           static_cast<const std::byte*>(block.data) + (at - block.begin) * size,
                           buffers_[buffer].get(), count * size);
    };
    if (first < last) start(first, 0);
    std::size_t buffer = 0;
    for (std::int64_t at = first; at < last; at += step, buffer = 1 - buffer) {
      device::Synchronise(stream_);
      if (at + step < last) start(at + step, 1 - buffer);
      const std::int64_t count = std::min(step, last - at);
      auto* out = static_cast<std::byte*>(to) + (at - first) * wide;
      const void* in = buffers_[buffer].get();
      if (stored == block.dtype) {
        std::memcpy(out, in, static_cast<std::size_t>(count * size));
      } else {
        const auto* narrow = static_cast<const std::uint16_t*>(in);
        std::transform(narrow, narrow + count, reinterpret_cast<float*>(out), FromBfloat16);
      }
    }
  }

 private:
  static constexpr std::int64_t kBounceBytes = std::int64_t{1} << 20;

  device::Stream stream_;
  std::map<const void*, Dtype> stored_;  // types in the device's memory
  std::array<device::PinnedBuffer, 2> buffers_;
};

}  // namespace

checkpoint::State StateToRead(const device::Stream& stream, std::vector<kernels::StateBlock> model,
                              std::vector<kernels::StateBlock> optimizer) {
  if (!stream.OnGpu()) return {std::move(model), std::move(optimizer), {}};
  std::vector<kernels::StateBlock> all = model;
  all.insert(all.end(), optimizer.begin(), optimizer.end());
  const auto reader = std::make_shared<DeviceReader>(stream, all);
  for (auto* blocks : {&model, &optimizer}) {
    for (kernels::StateBlock& block : *blocks) block.dtype = SumTypeOf(block.dtype);
  }
  return {std::move(model), std::move(optimizer),
          [reader](const kernels::StateBlock& block, std::int64_t first, std::int64_t last,
                   void* to) { reader->Read(block, first, last, to); }};
}

}  // namespace trireme::train
