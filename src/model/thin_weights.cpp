// ThinWeights: one buffer for all layers of the rank.
#include "trireme/model/thin_weights.hpp"

#include "trireme/kernels/thin_panels.hpp"
#include "trireme/model/stage_layers.hpp"

namespace trireme::model {

ThinWeights::ThinWeights(const ModelPlan& plan, const StagePlan& local, const StageLayers& layers,
                         const device::Stream& stream) {
  if (!plan.thin_panels) return;
  for (const StageLayers::Chunk& chunk : layers.Chunks()) {
    // An encoder sees whole texts.
    for (const Block& block : std::span(chunk.blocks).subspan(chunk.encoders)) {
      block.AddThinWeights(weights_);
    }
  }
  if (local.Last()) weights_.push_back(layers.Head().Weight());
  const kernels::Registry& registry = layers.Parameters();
  begins_.assign(registry.Parameters().size(), -1);
  std::int64_t bytes = 0;
  for (const ThinWeight& weight : weights_) {
    begins_[static_cast<std::size_t>(weight.id)] = bytes;
    bytes += kernels::PanelBytes(weight.form, registry.Value(weight.id, weight.count));
  }
  if (bytes > 0) panels_ = device::AllocateZeroed(bytes, stream.Where());
}

void ThinWeights::Pack(const kernels::Registry& registry, const device::Stream& stream) {
  for (const ThinWeight& weight : weights_) {
    char* const to =
        static_cast<char*>(panels_.get()) + begins_[static_cast<std::size_t>(weight.id)];
    kernels::PackPanels(stream, weight.form, registry.Value(weight.id, weight.count), to);
  }
  packed_ = !weights_.empty();
}

const void* ThinWeights::PanelsOf(kernels::ParameterId id) const {
  if (!packed_ || begins_[static_cast<std::size_t>(id)] < 0) return nullptr;
  return static_cast<const char*>(panels_.get()) + begins_[static_cast<std::size_t>(id)];
}

}  // namespace trireme::model
