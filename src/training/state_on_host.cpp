// StateOnHost: copies of training state between the device and the host.
#include "trireme/training/state_on_host.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/bfloat16.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::training {

namespace {

constexpr std::int64_t kAlignment = 64;  // bytes, of a block

std::int64_t Bytes(const tensor::StateBlock& block) {
  return (block.end - block.begin) * static_cast<std::int64_t>(SizeOf(block.dtype));
}

}  // namespace

StateOnHost::StateOnHost(const device::Stream& stream, std::vector<tensor::StateBlock> blocks)
    : stream_(stream), there_(std::move(blocks)), here_(there_) {
  if (!stream.OnGpu()) return;
  std::int64_t bytes = 0;
  for (tensor::StateBlock& block : here_) {
    block.dtype = SumTypeOf(block.dtype);
    bytes += CeilDivide(Bytes(block), kAlignment) * kAlignment;
  }
  memory_ = device::AllocateZeroed(bytes);
  auto* next = static_cast<std::byte*>(memory_.get());
  for (tensor::StateBlock& block : here_) {
    block.data = next;
    next += CeilDivide(Bytes(block), kAlignment) * kAlignment;
  }
}

StateOnHost StateOnHost::Fetch() && {
  for (std::size_t i = 0; stream_.OnGpu() && i < here_.size(); ++i) {
    const tensor::StateBlock &from = there_[i], &to = here_[i];
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
    const tensor::StateBlock &to = there_[i], &from = here_[i];
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

}  // namespace trireme::training
