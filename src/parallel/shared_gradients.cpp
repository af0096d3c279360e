// SharedGradients: which parameters share a message, packing, one all-reduce a group, unpacking.
#include "trireme/parallel/shared_gradients.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace trireme::parallel {

namespace {

using tensor::GradientSum;

// The order in which all ranks enter their groups: one order for all, or two could wait for each
// other.
constexpr std::array kOrder = {GradientSum::kTensor, GradientSum::kKeyValue, GradientSum::kTied};

bool LeftOut(GradientSum sum, Defect defect) {
  return (sum == GradientSum::kTensor && defect == Defect::kNormGradientNotSummed) ||
         (sum == GradientSum::kTied && defect == Defect::kTiedGradientNotSummed);
}

}  // namespace

SharedGradients::SharedGradients(tensor::Registry& registry,
                                 const std::map<GradientSum, comm::Collectives>& groups,
                                 Defect defect)
    : registry_(&registry) {
  std::int64_t most = 0;
  for (const GradientSum sum : kOrder) {
    const auto group = groups.find(sum);
    if (group == groups.end() || group->second.Size() == 1 || LeftOut(sum, defect)) continue;
    Message message{group->second, {}, 0};
    const auto& parameters = registry.Parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].sum != sum || !parameters[i].Held()) continue;
      message.parameters.push_back(static_cast<tensor::ParameterId>(i));
      message.elements += parameters[i].LocalSize();
    }
    if (message.parameters.empty()) continue;
    if (message.parameters.size() > 1) most = std::max(most, message.elements);
    messages_.push_back(std::move(message));
  }
  bytes_ = most * static_cast<std::int64_t>(SizeOf(registry.Type()));
  if (bytes_ > 0) buffer_ = device::AllocateZeroed(bytes_);
}

void SharedGradients::Sum() {
  for (const Message& message : messages_) {
    if (message.parameters.size() == 1) {
      // Already in one piece, and an embedding is too big to copy for nothing.
      const tensor::Matrix gradient = registry_->Gradient(message.parameters.front());
      message.group.AllReduce(gradient.dtype, gradient.data, gradient.Size());
      continue;
    }
    Copy(message, true);
    message.group.AllReduce(registry_->Type(), buffer_.get(), message.elements);
    Copy(message, false);
  }
}

void SharedGradients::Copy(const Message& message, bool pack) {
  auto* packed = static_cast<char*>(buffer_.get());
  for (const tensor::ParameterId id : message.parameters) {
    const tensor::Matrix gradient = registry_->Gradient(id);
    const std::size_t bytes = static_cast<std::size_t>(gradient.Size()) * SizeOf(registry_->Type());
    if (pack) {
      std::memcpy(packed, gradient.data, bytes);
    } else {
      std::memcpy(gradient.data, packed, bytes);
    }
    packed += bytes;
  }
}

}  // namespace trireme::parallel
