// SharedGradients: parameters that share a message, packing, one all-reduce per group, unpacking.
#include "trireme/parallel/shared_gradients.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "trireme/device/memory.hpp"

namespace trireme::parallel {

namespace {

using kernels::GradientSum;

// The order in which all ranks enter their groups: one order for all, or two could wait for each
// other.
constexpr std::array kOrder = {GradientSum::kTensor, GradientSum::kKeyValue, GradientSum::kTied};

}  // namespace

SharedGradients::SharedGradients(kernels::Registry& registry,
                                 const std::map<GradientSum, comm::Collectives>& groups,
                                 bool sharded, const device::Stream& stream)
    : registry_(&registry), stream_(stream) {
  const auto& parameters = registry.Parameters();
  for (const GradientSum sum : kOrder) {
    const auto group = groups.find(sum);
    if (group == groups.end() || group->second.Size() == 1) continue;
    const bool owned = sharded && sum == GradientSum::kTied;
    const bool by_piece = sharded && !owned;
    Message message{group->second.Carrying(comm::Payload::kGradients), kAll, {}, owned, 0};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].sum != sum || !parameters[i].Held()) continue;
      const int piece = by_piece ? PieceOf(parameters[i]) : kAll;
      if (piece != message.piece && !message.parameters.empty()) {
        messages_.push_back(message);
        message.parameters.clear();
        message.elements = 0;
      }
      message.piece = piece;
      Add(message, static_cast<kernels::ParameterId>(i));
    }
    if (!message.parameters.empty()) messages_.push_back(std::move(message));
  }
  std::int64_t most = 0;
  for (const Message& message : messages_) {
    if (message.parameters.size() > 1) most = std::max(most, message.elements);
  }
  const std::int64_t bytes = most * static_cast<std::int64_t>(SizeOf(registry.SumType()));
  if (bytes > 0) buffer_ = device::AllocateZeroed(bytes, stream.Where());
}

void SharedGradients::Add(Message& message, kernels::ParameterId id) {
  const std::int64_t elements =
      message.owned ? registry_->OwnedOf(id).flat.Size()
                    : registry_->Parameters()[static_cast<std::size_t>(id)].LocalSize();
  if (elements == 0) return;  // all of it is another rank's, in each rank of the group
  message.parameters.push_back(id);
  message.elements += elements;
}

int SharedGradients::PieceOf(const kernels::Parameter& parameter) const {
  const auto& pieces = registry_->Owns().pieces;
  const auto at = std::find_if(pieces.begin(), pieces.end(), [&](const kernels::Piece& piece) {
    return parameter.offset < piece.range.end;
  });
  return static_cast<int>(at - pieces.begin());
}

void SharedGradients::Sum() {
  for (const Message& message : messages_) {
    if (message.piece == kAll) Sum(message);
  }
}

void SharedGradients::SumPiece(int piece) {
  for (const Message& message : messages_) {
    if (message.piece == piece) Sum(message);
  }
}

SharedGradients::Span SharedGradients::SpanOf(const Message& message,
                                              kernels::ParameterId id) const {
  if (message.owned) {
    const kernels::Owned owned = registry_->OwnedOf(id);
    return {ElementAt(registry_->Gradients(), registry_->SumType(), owned.gradient),
            owned.flat.Size()};
  }
  const kernels::Matrix gradient = registry_->Gradient(id);
  return {gradient.data, gradient.Size()};
}

void SharedGradients::Sum(const Message& message) {
  if (message.parameters.size() == 1) {
    // Already in one piece, and an embedding is too big to copy for nothing.
    const Span span = SpanOf(message, message.parameters.front());
    return message.group.AllReduce(registry_->SumType(), span.data, span.elements);
  }
  Copy(message, true);
  message.group.AllReduce(registry_->SumType(), buffer_.get(), message.elements);
  Copy(message, false);
}

void SharedGradients::Copy(const Message& message, bool pack) {
  auto* packed = static_cast<char*>(buffer_.get());
  for (const kernels::ParameterId id : message.parameters) {
    const Span span = SpanOf(message, id);
    const std::int64_t bytes =
        span.elements * static_cast<std::int64_t>(SizeOf(registry_->SumType()));
    device::CopyWithin(stream_, pack ? span.data : packed, pack ? packed : span.data, bytes);
    packed += bytes;
  }
}

}  // namespace trireme::parallel
