// CopiedGradients: parameters that share a message, packing, and one rank's bits for all.
#include "trireme/parallel/copied_gradients.hpp"

#include <algorithm>
#include <utility>

#include "trireme/device/memory.hpp"

namespace trireme::parallel {

namespace {

using kernels::GradientSum;

// Terms of a sum for which every order gives the same bits.
constexpr int kCommute = 2;

}  // namespace

CopiedGradients::CopiedGradients(kernels::Registry& registry, const CopyGroups& groups, bool sharded,
                                 bool canonical, const device::Stream& stream)
    : registry_(&registry),
      stream_(stream),
      shard_(groups.shard.Carrying(comm::Payload::kGradients)) {
  const int data = groups.data.Size();
  const bool last_over_data = !canonical && std::max(data, groups.shard.Size()) > kCommute;
  for (const bool heads : {false, true}) {
    const comm::Collectives& copies = heads ? groups.key_value : groups.tensor;
    if (copies.Size() == 1) continue;
    if (sharded) {
      if (!last_over_data) continue;
      AddMessage({copies, true, {}, 0}, heads, false);
      AddMessage({copies, true, {}, 0}, heads, true);
      continue;
    }
    if (last_over_data) AddMessage({copies, false, {}, 0}, heads, false);
    if (copies.Size() > kCommute && data > 1) AddMessage({groups.data, false, {}, 0}, heads, true);
  }
  std::int64_t most = 0;
  for (const Message& message : messages_) most = std::max(most, message.elements);
  const std::int64_t bytes = most * static_cast<std::int64_t>(SizeOf(registry.SumType()));
  if (bytes > 0) buffer_ = device::AllocateZeroed(bytes, stream.Where());
}

// The parameters of this kind: shared heads or those that every tensor rank holds whole; summed
// over their copies or complete on each. Nothing if there are none.
void CopiedGradients::AddMessage(Message message, bool shared_heads, bool summed) {
  const auto& parameters = registry_->Parameters();
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    const kernels::Parameter& parameter = parameters[id];
    if (!parameter.Held() || parameter.copies == 1 || parameter.sum == GradientSum::kTied) continue;
    if ((parameter.sum == GradientSum::kKeyValue) != shared_heads) continue;
    if ((parameter.sum != GradientSum::kNone) != summed) continue;
    message.parameters.push_back(static_cast<kernels::ParameterId>(id));
    message.elements += parameter.LocalSize();
  }
  if (message.elements == 0) return;
  message.group = message.group.Carrying(comm::Payload::kGradients);
  messages_.push_back(std::move(message));
}

void CopiedGradients::Share() {
  const Dtype type = registry_->SumType();
  for (const Message& message : messages_) {
    const bool put_together = message.parts && shard_.Size() > 1;
    if (put_together) {
      device::SetZero(stream_, buffer_.get(),
                      message.elements * static_cast<std::int64_t>(SizeOf(type)));
    }
    Copy(message, true);
    if (put_together) shard_.AllReduce(type, buffer_.get(), message.elements);
    message.group.Broadcast(type, buffer_.get(), message.elements, 0);
    Copy(message, false);
  }
}

// Owned elements, into their places in the buffer or back.
void CopiedGradients::Copy(const Message& message, bool pack) {
  const Dtype type = registry_->SumType();
  std::int64_t at = 0;
  for (const kernels::ParameterId id : message.parameters) {
    const kernels::Parameter& parameter = registry_->Parameters()[static_cast<std::size_t>(id)];
    const kernels::Owned owned = registry_->OwnedOf(id);
    if (owned.flat.Size() > 0) {
      void* const packed = ElementAt(buffer_.get(), type, at + owned.flat.begin - parameter.offset);
      void* const gradient = ElementAt(registry_->Gradients(), type, owned.gradient);
      device::CopyWithin(stream_, pack ? gradient : packed, pack ? packed : gradient,
                         owned.flat.Size() * static_cast<std::int64_t>(SizeOf(type)));
    }
    at += parameter.LocalSize();
  }
}

}  // namespace trireme::parallel
